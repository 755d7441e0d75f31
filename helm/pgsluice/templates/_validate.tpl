{{/*
Refuse values that cannot work, all of them at once, before anything is installed. Mistakes that the schema refuses (a
name that does not exist, a value of another type) are not checked again.
*/}}

{{- define "pgsluice.validate" -}}
{{- $problems := list -}}
{{- range list "replicas" "config" "secrets" "env" "metrics" -}}
{{- $problems = concat $problems (include (printf "pgsluice.problems.%s" .) $ | fromJsonArray) -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "\n\n* %s\n" (join "\n* " $problems)) -}}
{{- end -}}
{{- end }}

{{- define "pgsluice.problems.replicas" -}}
{{- $problems := list -}}
{{- if or (lt (int .Values.replicas) 1) (gt (int .Values.replicas) 2) -}}
{{- $problems = append $problems (printf "replicas is %d. One pod owns the replication slot, a second one waits as its standby, and more would only wait as well. Set replicas to 1 or 2." (int .Values.replicas)) -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}

{{- define "pgsluice.problems.config" -}}
{{- $problems := list -}}
{{- $existing := .Values.existingConfigMap.name -}}
{{- $text := trim .Values.config -}}
{{- if and $text $existing -}}
{{- $problems = append $problems "config and existingConfigMap.name are both set, but only one of them can be mounted. Remove one of the two." -}}
{{- else if not (or $text $existing) -}}
{{- $problems = append $problems "There are no settings for pgsluice. Set config to the text of a TOML file (helm install --set-file config=pgsluice.toml ...), or existingConfigMap.name to a ConfigMap that holds one." -}}
{{- else if $text -}}
{{- $settings := fromToml $text -}}
{{- with $settings.Error -}}
{{- $problems = append $problems (printf "config is not TOML: %s. Correct it; `pgsluice check --offline -c FILE` names every mistake." .) -}}
{{- end -}}
{{- range include "pgsluice.inlineSecrets" $settings | fromJsonArray -}}
{{- $problems = append $problems (printf "config holds a secret, %s, which everybody who may read ConfigMaps or the values of the release could see. Remove it from config, put it into a Secret, and name that one in secretSettings." .) -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}

{{/* Return the names of the secrets in the settings; called with the parsed file. */}}
{{- define "pgsluice.inlineSecrets" -}}
{{- $found := list -}}
{{- $postgres := include "pgsluice.section" (list . "postgres") | fromJson -}}
{{- $registry := include "pgsluice.section" (list . "schema_registry") | fromJson -}}
{{- $kafka := include "pgsluice.section" (list . "kafka") | fromJson -}}
{{- if hasKey $postgres "password" }}{{ $found = append $found "postgres.password" }}{{ end -}}
{{- if regexMatch "(?i)(password\\s*=|^[a-z]+://[^/@]*:[^/@]*@)" (toString (get $postgres "dsn")) }}{{ $found = append $found "postgres.dsn" }}{{ end -}}
{{- range $name := include "pgsluice.secretNames" (get $postgres "parameters") | fromJsonArray }}{{ $found = append $found (printf "postgres.parameters.%s" $name) }}{{ end -}}
{{- if hasKey $registry "password" }}{{ $found = append $found "schema_registry.password" }}{{ end -}}
{{- if hasKey $registry "token" }}{{ $found = append $found "schema_registry.token" }}{{ end -}}
{{- range $name := include "pgsluice.secretNames" (get $kafka "client") | fromJsonArray }}{{ $found = append $found (printf "kafka.client.%s" $name) }}{{ end -}}
{{- toJson $found -}}
{{- end }}

{{/* Return a table of the settings, or an empty one if it is missing; called with the parsed file and the table's name. */}}
{{- define "pgsluice.section" -}}
{{- $found := get (index . 0) (index . 1) -}}
{{- toJson (kindIs "map" $found | ternary $found dict) -}}
{{- end }}

{{/* Return the keys of a table that contain secrets, judging by their names. */}}
{{- define "pgsluice.secretNames" -}}
{{- $found := list -}}
{{- if kindIs "map" . -}}
{{- range $name, $_ := . -}}
{{- if and (regexMatch "password|passphrase|secret|scram_|key\\.pem|sasl\\.oauthbearer\\.config|jaas" $name) (not (hasSuffix "_file" $name)) }}{{ $found = append $found $name }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{- define "pgsluice.problems.secrets" -}}
{{- $problems := list -}}
{{- $seen := list -}}
{{- range .Values.secretSettings -}}
{{- if not (regexMatch "^(postgres\\.(password|dsn|parameters\\.[a-z_]+)|schema_registry\\.(password|token)|http\\.token|kafka\\.client\\.[a-z0-9._]+)$" .setting) -}}
{{- $problems = append $problems (printf "secretSettings names %s, which is no secret setting. There are postgres.password, postgres.dsn, postgres.parameters.NAME, schema_registry.password, schema_registry.token, http.token and kafka.client.NAME; all others belong into config." .setting) -}}
{{- end -}}
{{- if has .setting $seen -}}
{{- $problems = append $problems (printf "secretSettings names %s twice. Remove one of the two." .setting) -}}
{{- end -}}
{{- $seen = append $seen .setting -}}
{{- end -}}
{{- range .Values.registry.secretSettings -}}
{{- if not (or (hasPrefix "kafka.client." .setting) (eq .setting "http.token")) -}}
{{- $problems = append $problems (printf "registry.secretSettings names %s. The registry connects to Kafka only, so there are http.token and kafka.client.NAME." .setting) -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}

{{- define "pgsluice.problems.env" -}}
{{- $problems := list -}}
{{- $owned := dict "PGSLUICE_CONFIG" "config" "PGSLUICE_HTTP__LISTEN" "listenHost" "PGSLUICE_SHUTDOWN__DRAIN_TIMEOUT" "drainTimeoutSeconds" "PGSLUICE_BUFFER__SPILL_DIR" "extraVolumes" "PGSLUICE_BUFFER__SPILL_MAX" "spill.size" "PGSLUICE_SECRETS_DIR" "secretsFrom" -}}
{{- range concat .Values.env .Values.registry.env -}}
{{- if hasKey $owned .name -}}
{{- $problems = append $problems (printf "env sets %s, which the chart sets itself. Set %s instead." .name (get $owned .name)) -}}
{{- end -}}
{{- if and .value (regexMatch "^(PGSLUICE|PG).*(PASSWORD|SECRET|TOKEN|JAAS|KEY_PEM)$" .name) -}}
{{- $problems = append $problems (printf "env holds a secret, %s, which everybody who may read Deployments or the values of the release could see. Put it into a Secret, and name that one in secretSettings, or in valueFrom." .name) -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}

{{- define "pgsluice.problems.metrics" -}}
{{- $problems := list -}}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled -}}
{{- $problems = append $problems "metrics.podMonitor and metrics.serviceMonitor are both enabled, so every pod would be scraped twice. Disable one of the two." -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.service.enabled) -}}
{{- $problems = append $problems "metrics.serviceMonitor needs service.enabled. Enable that, or take metrics.podMonitor." -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}
