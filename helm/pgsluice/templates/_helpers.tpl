{{/* Names and labels */}}

{{- define "pgsluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* At most 50 characters, because "-registry" and the suffixes of the names of pods have to fit as well. */}}
{{- define "pgsluice.fullname" -}}
{{- $name := include "pgsluice.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "pgsluice.configMap" -}}
{{- .Values.existingConfigMap.name | default (include "pgsluice.fullname" .) -}}
{{- end }}

{{- define "pgsluice.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "pgsluice.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "pgsluice.image" -}}
{{- with .Values.image -}}
{{- .repository -}}{{- if .digest -}}@{{ .digest }}{{- else -}}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}

{{/* The labels that all pods of a release have. */}}
{{- define "pgsluice.releaseLabels" -}}
app.kubernetes.io/name: {{ include "pgsluice.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The labels that select the pods of one component; called with the root and the component's name. */}}
{{- define "pgsluice.selectorLabels" -}}
{{ include "pgsluice.releaseLabels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "pgsluice.labels" -}}
{{- $root := index . 0 -}}
{{ include "pgsluice.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Values.image.tag | default $root.Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The selector of the pods of all components. It does not match the pod of the test. */}}
{{- define "pgsluice.components" -}}
matchLabels:
  {{- include "pgsluice.releaseLabels" . | nindent 2 }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: [pipeline, registry]
{{- end }}
