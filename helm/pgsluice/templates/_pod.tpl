{{/* The parts that the pods of all components have in common; called with the root and the component's name. */}}

{{- define "pgsluice.podMetadata" -}}
{{- $root := index . 0 -}}
annotations:
  {{- if not $root.Values.existingConfigMap.name }}
  checksum/config: {{ sha256sum $root.Values.config }}
  {{- end }}
  {{- with $root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
labels:
  {{- include "pgsluice.selectorLabels" . | nindent 2 }}
  {{- with $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "pgsluice.podSpec" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ include "pgsluice.serviceAccount" $root }}
automountServiceAccountToken: {{ $root.Values.serviceAccount.automount }}
# If a Service is named pgsluice, Kubernetes would set variables for it that look like settings.
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Keep two or more pods of a component apart; called with the root, the component's name and the number of replicas. */}}
{{- define "pgsluice.spread" -}}
{{- $root := index . 0 -}}
{{- $several := gt (int (index . 2)) 1 -}}
{{- with $root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- if $several }}
affinity:
  podAntiAffinity:
    # This is only a preference. During an update, there is one more pod for a moment, which must not wait for a node.
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "pgsluice.selectorLabels" (list $root (index . 1)) | nindent 14 }}
{{- end }}
{{- end }}
{{- with $root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- if $several }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "pgsluice.selectorLabels" (list $root (index . 1)) | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "pgsluice.container" -}}
image: {{ include "pgsluice.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# With this policy, `kubectl describe pod` shows the last lines of the log.
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{- define "pgsluice.probe" -}}
{{- $root := index . 0 -}}
httpGet:
  path: {{ index . 1 }}
  port: http
  {{- if $root.Values.tls.http.secretName }}
  scheme: HTTPS
  {{- end }}
{{ toYaml (index . 2) }}
{{- end }}
