{{/*
The environment variables that the chart sets for pgsluice, and the files to which they refer. The templates are called
with (dict "root" $ "entries" LIST "connections" LIST). The lists are the secret settings that the component may see,
and the connections whose certificates it needs.
*/}}

{{/* The size of the volume for spilled transactions, in MiB. */}}
{{- define "pgsluice.spillMebibytes" -}}
{{- $units := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 -}}
{{- $size := .Values.spill.size -}}
{{- mul (regexFind "^[0-9]+" $size) (get $units (regexFind "[A-Z]i$" $size)) -}}
{{- end }}

{{/* The secret settings of the registry: its own, or otherwise those of the pipeline for Kafka and HTTP. */}}
{{- define "pgsluice.registrySecretSettings" -}}
{{- $own := .Values.registry.secretSettings -}}
{{- $entries := list -}}
{{- range .Values.secretSettings -}}
{{- if or (hasPrefix "kafka." .setting) (eq .setting "http.token") }}{{ $entries = append $entries . }}{{ end -}}
{{- end -}}
{{- toJson (dict "entries" ($own | default $entries)) -}}
{{- end }}

{{/*
The name of the file that contains a secret setting. If there is also a setting with the suffix _file, it is set to
this file, and pgsluice reads the file again while it runs. All other settings are read from the secrets directory,
where names have two underscores between tables.
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
# A directory in the volume, because Kubernetes makes the volume itself writable for all users.
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
# The whole directory is mounted, because a single mounted file would never be updated.
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

{{/* Secret files belong to root and are readable for the pod's group, because libpq refuses keys that others can read. */}}
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
