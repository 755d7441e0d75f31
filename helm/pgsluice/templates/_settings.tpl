{{/*
The environment variables that the chart sets for pgsluice, and the files to which they refer. The templates are called
with (dict "root" $ "entries" LIST "secretsFrom" LIST "env" LIST "connections" LIST). The lists are the secret settings,
the Secrets and the variables that the component may see, and the connections whose certificates it needs.
*/}}

{{/* The size of the volume for spilled transactions, in MiB. */}}
{{- define "pgsluice.spillMebibytes" -}}
{{- $units := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 -}}
{{- $size := .Values.spill.size -}}
{{- mul (regexFind "^[0-9]+" $size) (get $units (regexFind "[A-Z]i$" $size)) -}}
{{- end }}

{{/* What the pipeline may see. */}}
{{- define "pgsluice.pipeline" -}}
{{- $entries := include "pgsluice.entries" .Values.secretSettings | fromJsonArray -}}
{{- $connections := list "postgres" "kafka" "schemaRegistry" "http" -}}
{{- toJson (dict "entries" $entries "secretsFrom" .Values.secretsFrom "env" .Values.env "connections" $connections) -}}
{{- end }}

{{/*
What the registry may see. If it has its own secrets for Kafka, it gets none of the pipeline's. It never gets secrets for
PostgreSQL or for a registry server. It gets the pipeline's token unless it has its own, because the registry's port must
not be open if the pipeline's port needs a token.
*/}}
{{- define "pgsluice.registry" -}}
{{- $own := .Values.registry -}}
{{- $shared := not (include "pgsluice.ownKafkaSecrets" $own) -}}
{{- $entries := include "pgsluice.entries" $own.secretSettings | fromJsonArray -}}
{{- $settings := list -}}
{{- range $entries }}{{ $settings = append $settings .setting }}{{ end -}}
{{- range include "pgsluice.entries" .Values.secretSettings | fromJsonArray -}}
{{- $token := and (eq .setting "http.token") (not (has "http.token" $settings)) -}}
{{- if or $token (and $shared (hasPrefix "kafka." .setting)) }}{{ $entries = append $entries . }}{{ end -}}
{{- end -}}
{{- $env := list -}}
{{- range .Values.env -}}
{{- $refused := regexMatch "(?i)^(PGSLUICE_(POSTGRES__.*|SNAPSHOT__PRIMARY|SCHEMA_REGISTRY__(PASSWORD|TOKEN))|PG[A-Z]+)$" .name -}}
{{- if not (or $refused (and (not $shared) (include "pgsluice.isKafkaSecret" .))) }}{{ $env = append $env . }}{{ end -}}
{{- end -}}
{{- toJson (dict "entries" $entries "secretsFrom" $own.secretsFrom "env" (concat $env $own.env) "connections" (list "kafka" "http")) -}}
{{- end }}

{{/*
Return a text that is not empty if the registry has its own secrets for Kafka; called with the registry's values. The
content of Secrets cannot be seen here. But the registry connects to Kafka only, so its Secrets are for Kafka.
*/}}
{{- define "pgsluice.ownKafkaSecrets" -}}
{{- if .secretsFrom }}yes{{ end -}}
{{- range .secretSettings }}{{ if hasPrefix "kafka." .setting }}yes{{ end }}{{ end -}}
{{- range .envFrom }}{{ if .secretRef }}yes{{ end }}{{ end -}}
{{- range .env }}{{ include "pgsluice.isKafkaSecret" . }}{{ end -}}
{{- end }}

{{/* Return a text that is not empty if a variable contains a secret for Kafka, or says where Kafka's password is. */}}
{{- define "pgsluice.isKafkaSecret" -}}
{{- $setting := include "pgsluice.settingOfVariable" .name -}}
{{- $table := and (eq $setting "kafka.client") .valueFrom -}}
{{- if or $table (has $setting (list "kafka.password_file" "kafka.password_command")) -}}
yes
{{- else if hasPrefix "kafka.client." $setting -}}
{{- include "pgsluice.holdsSecret" (list $setting "") -}}
{{- end -}}
{{- end }}

{{/* Return secret settings, with dots instead of underscores in the names of properties of Kafka's client. */}}
{{- define "pgsluice.entries" -}}
{{- $entries := list -}}
{{- range . }}{{ $entries = append $entries (merge (dict "setting" (include "pgsluice.settingOf" .setting)) .) }}{{ end -}}
{{- toJson $entries -}}
{{- end }}

{{/*
Return "set" if the HTTP server of a component needs a token, "unknown" if the chart cannot see this, and otherwise an
empty text. Called with (dict "settings" DICT "existing" NAME "component" DICT "envFrom" LIST "extraArgs" LIST).
*/}}
{{- define "pgsluice.token" -}}
{{- $set := hasKey (include "pgsluice.section" (list .settings "http") | fromJson) "token_file" -}}
{{- range .component.entries }}{{ if eq .setting "http.token" }}{{ $set = true }}{{ end }}{{ end -}}
{{- range .component.env }}{{ if eq (include "pgsluice.settingOfVariable" .name) "http.token_file" }}{{ $set = true }}{{ end }}{{ end -}}
{{- range .extraArgs }}{{ if regexMatch "^(--set=)?\\s*http\\.token_file\\s*=" . }}{{ $set = true }}{{ end }}{{ end -}}
{{- if $set }}set{{ else if or .existing .envFrom }}unknown{{ end -}}
{{- end }}

{{/*
The name of the file that contains a secret setting. If there is also a setting with the suffix _file, such as
postgres.password_file, it is set to this file, and pgsluice reads the file again while it runs. pgsluice reads all other
settings from the secrets directory, where the names of files have two underscores between tables.
*/}}
{{- define "pgsluice.secretFile" -}}
{{- if eq . "kafka.client.sasl.password" -}}
kafka-password
{{- else if has . (list "postgres.password" "schema_registry.password" "schema_registry.token" "http.token") -}}
{{- . | replace "." "-" | replace "_" "-" -}}
{{- else if hasPrefix "kafka.client." . -}}
kafka__client__{{ trimPrefix "kafka.client." . }}
{{- else -}}
{{- . | replace "." "__" -}}
{{- end -}}
{{- end }}

{{- define "pgsluice.secretsDirectory" -}}/run/secrets/pgsluice{{- end }}

{{/*
If several variables have the same name, the last one applies. Only that one is rendered, because server-side apply, which
Helm 4 uses, refuses a list where a name occurs twice.
*/}}
{{- define "pgsluice.env" -}}
{{- $root := .root -}}
{{- $order := list -}}
{{- $given := dict -}}
{{- range .env -}}
{{- $order = append (without $order .name) .name -}}
{{- $_ := set $given .name . -}}
{{- end -}}
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
{{- if or .entries .secretsFrom }}
- name: PGSLUICE_SECRETS_DIR
  value: {{ include "pgsluice.secretsDirectory" . }}
{{- end }}
{{- range .entries }}
{{- $file := include "pgsluice.secretFile" .setting }}
{{- $name := printf "PGSLUICE_%s_FILE" (.setting | replace "client.sasl." "" | replace "." "__" | upper) }}
{{- if not (or (contains "__" $file) (hasKey $given $name)) }}
- name: {{ $name }}
  value: {{ include "pgsluice.secretsDirectory" . }}/{{ $file }}
{{- end }}
{{- end }}
{{- range $connection := .connections }}
{{- with get $root.Values.tls $connection }}
{{- if .secretName }}
{{- $names := get (include "pgsluice.certificateVariables" . | fromJson) $connection }}
{{- range $part, $name := $names }}
{{- $file := get (get $root.Values.tls $connection) $part }}
{{- if and $file (not (hasKey $given (printf "PGSLUICE_%s" $name))) }}
- name: PGSLUICE_{{ $name }}
  value: /run/tls/{{ $connection | kebabcase }}/{{ $file }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $order }}
{{ toYaml (list (get $given .)) }}
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
{{- if or .entries .secretsFrom }}
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

{{/* Secret files belong to root, and the pod's group can read them, because libpq refuses keys that others can read. */}}
{{- define "pgsluice.volumes" -}}
{{- $root := .root -}}
- name: config
  configMap:
    name: {{ include "pgsluice.configMap" $root }}
    items:
      - key: {{ ternary $root.Values.existingConfigMap.key "config.toml" (ne $root.Values.existingConfigMap.name "") }}
        path: config.toml
{{- if or .entries .secretsFrom }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .secretsFrom }}
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
