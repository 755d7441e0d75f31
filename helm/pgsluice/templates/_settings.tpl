{{/*
What the chart sets in the environment of pgsluice, and the files behind it. A component is called with
(dict "root" $ "entries" LIST "connections" LIST): the secret settings that it may see, and the connections whose
certificates it needs.
*/}}

{{/* The size of the volume for spilled transactions, in MiB. */}}
{{- define "pgsluice.spillMebibytes" -}}
{{- $units := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 -}}
{{- $size := .Values.spill.size -}}
{{- mul (regexFind "^[0-9]+" $size) (get $units (regexFind "[A-Z]i$" $size)) -}}
{{- end }}

{{/* The secret settings of a component: those of the registry are its own, or the pipeline's that concern Kafka and HTTP. */}}
{{- define "pgsluice.registrySecretSettings" -}}
{{- $own := .Values.registry.secretSettings -}}
{{- $entries := list -}}
{{- range .Values.secretSettings -}}
{{- if or (hasPrefix "kafka." .setting) (eq .setting "http.token") }}{{ $entries = append $entries . }}{{ end -}}
{{- end -}}
{{- toJson (dict "entries" ($own | default $entries)) -}}
{{- end }}

{{/*
The name of the file that holds a secret setting. Settings that have a twin in _file are read from there, again for every
connection. All others are read from the secrets directory, where names have two underscores between tables.
*/}}
{{- define "pgsluice.secretFile" -}}
{{- if has . (list "postgres.password" "schema_registry.password" "schema_registry.token" "http.token") -}}
{{- . | replace "." "-" | replace "_" "-" -}}
{{- else if hasPrefix "kafka.client." . -}}
kafka__client__{{ trimPrefix "kafka.client." . }}
{{- else -}}
{{- . | replace "." "__" -}}
{{- end -}}
{{- end }}

{{- define "pgsluice.secretsDirectory" -}}/run/secrets/pgsluice{{- end }}

{{- define "pgsluice.env" -}}
{{- $root := .root -}}
- name: PGSLUICE_CONFIG
  value: /etc/pgsluice/config.toml
- name: PGSLUICE_HTTP__LISTEN
  value: {{ printf "%s:8080" $root.Values.listenHost | quote }}
- name: PGSLUICE_SHUTDOWN__DRAIN_TIMEOUT
  value: {{ printf "%ds" (int $root.Values.drainTimeoutSeconds) }}
# Below the volume: Kubernetes makes the volume itself writable for all, pgsluice this directory for its own user only.
- name: PGSLUICE_BUFFER__SPILL_DIR
  value: /var/lib/pgsluice/spill/private
- name: PGSLUICE_BUFFER__SPILL_MAX
  value: {{ printf "%dMiB" (div (mul 9 (include "pgsluice.spillMebibytes" $root)) 10) }}
{{- if or .entries $root.Values.secretsFrom }}
- name: PGSLUICE_SECRETS_DIR
  value: {{ include "pgsluice.secretsDirectory" . }}
{{- end }}
{{- range .entries }}
{{- $file := include "pgsluice.secretFile" .setting }}
{{- if not (contains "__" $file) }}
- name: PGSLUICE_{{ .setting | replace "." "__" | upper }}_FILE
  value: {{ include "pgsluice.secretsDirectory" . }}/{{ $file }}
{{- end }}
{{- end }}
{{- range $connection := .connections }}
{{- with get $root.Values.tls $connection }}
{{- if .secretName }}
{{- $names := get (include "pgsluice.certificateVariables" . | fromJson) $connection }}
{{- range $part, $name := $names }}
{{- with get (get $root.Values.tls $connection) $part }}
- name: PGSLUICE_{{ $name }}
  value: /run/tls/{{ $connection | kebabcase }}/{{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with $root.Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pgsluice.certificateVariables" -}}
{
  "postgres": {"ca": "POSTGRES__SSLROOTCERT", "cert": "POSTGRES__SSLCERT", "key": "POSTGRES__SSLKEY"},
  "kafka": {
    "ca": "KAFKA__CLIENT__SSL_CA_LOCATION",
    "cert": "KAFKA__CLIENT__SSL_CERTIFICATE_LOCATION",
    "key": "KAFKA__CLIENT__SSL_KEY_LOCATION"
  },
  "schemaRegistry": {
    "ca": "SCHEMA_REGISTRY__CA_FILE",
    "cert": "SCHEMA_REGISTRY__CERT_FILE",
    "key": "SCHEMA_REGISTRY__KEY_FILE"
  },
  "http": {"cert": "HTTP__TLS_CERT_FILE", "key": "HTTP__TLS_KEY_FILE"}
}
{{- end }}

{{- define "pgsluice.volumeMounts" -}}
{{- $root := .root -}}
# A directory: a single file would never be updated.
- name: config
  mountPath: /etc/pgsluice
  readOnly: true
{{- if or .entries $root.Values.secretsFrom }}
- name: secrets
  mountPath: {{ include "pgsluice.secretsDirectory" . }}
  readOnly: true
{{- end }}
{{- range .connections }}
{{- if (get $root.Values.tls .).secretName }}
- name: tls-{{ kebabcase . }}
  mountPath: /run/tls/{{ kebabcase . }}
  readOnly: true
{{- end }}
{{- end }}
{{- with $root.Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Files of secrets are root's and readable for the group of the pod: libpq refuses keys that others can read. */}}
{{- define "pgsluice.volumes" -}}
{{- $root := .root -}}
- name: config
  configMap:
    name: {{ include "pgsluice.configMap" $root }}
    items:
      - key: {{ ternary $root.Values.existingConfigMap.key "config.toml" (ne $root.Values.existingConfigMap.name "") }}
        path: config.toml
{{- if or .entries $root.Values.secretsFrom }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range $root.Values.secretsFrom }}
      - secret:
          name: {{ . }}
      {{- end }}
      {{- range .entries }}
      - secret:
          name: {{ .secretName }}
          items:
            - key: {{ .key | quote }}
              path: {{ include "pgsluice.secretFile" .setting }}
      {{- end }}
{{- end }}
{{- range $connection := .connections }}
{{- with (get $root.Values.tls $connection).secretName }}
- name: tls-{{ kebabcase $connection }}
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
