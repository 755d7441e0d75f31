{{/*
Refuse values that cannot work, before anything is installed, and report all of them together. Mistakes that
values.schema.json refuses (a name that does not exist, a value of a wrong type) are not checked again.
*/}}

{{- define "pgsluice.validate" -}}
{{- $problems := list -}}
{{- range list "replicas" "config" "secrets" "env" "extraArgs" "metrics" -}}
{{- $problems = concat $problems (include (printf "pgsluice.problems.%s" .) $ | fromJsonArray) -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "\n\n* %s\n" (join "\n* " $problems)) -}}
{{- end -}}
{{- end }}

{{- define "pgsluice.problems.replicas" -}}
{{- $problems := list -}}
{{- if or (lt (int .Values.replicas) 1) (gt (int .Values.replicas) 2) -}}
{{- $problems = append $problems (printf "replicas is %d. One pod owns the replication slot, a second one waits as its standby, and further pods would only wait as well. Set replicas to 1 or 2." (int .Values.replicas)) -}}
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
{{- $problems = append $problems "There are no settings for pgsluice. Set config to the text of a TOML file (helm install --set-file config=pgsluice.toml ...), or existingConfigMap.name to the name of a ConfigMap with such a text." -}}
{{- else if $text -}}
{{- $settings := fromToml $text -}}
{{- with $settings.Error -}}
{{- $problems = append $problems (printf "config is not TOML: %s. Correct it. `pgsluice check --offline -c FILE` names every mistake." .) -}}
{{- end -}}
{{- range include "pgsluice.inlineSecrets" $settings | fromJsonArray -}}
{{- $problems = append $problems (printf "config holds a secret, %s. Everybody who may read ConfigMaps or the values of the release could see it. Remove it from config, put it into a Secret, and name this Secret in secretSettings." .) -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}

{{/* Return the names of the secrets in the settings; called with the parsed file. */}}
{{- define "pgsluice.inlineSecrets" -}}
{{- $found := list -}}
{{- $settings := . -}}
{{- range list "postgres" "snapshot" "kafka" "schema_registry" -}}
{{- $section := . -}}
{{- range $key, $value := include "pgsluice.section" (list $settings $section) | fromJson -}}
{{- if not (kindIs "map" $value) }}{{ $value = dict "" $value }}{{ end -}}
{{- range $name, $text := $value -}}
{{- $path := list $section $key $name | compact | join "." -}}
{{- /* In TOML, if the name of a property has dots and no quotes, the dots create nested tables. */ -}}
{{- $full := kindIs "map" $text | ternary (printf "%s.%s" $path (toJson $text)) $path -}}
{{- if include "pgsluice.holdsSecret" (list $full (toString $text)) }}{{ $found = append $found $path }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Return a table of the settings, or an empty one if it is missing; called with the parsed file and the table's name. */}}
{{- define "pgsluice.section" -}}
{{- $found := get (index . 0) (index . 1) -}}
{{- toJson (kindIs "map" $found | ternary $found dict) -}}
{{- end }}

{{/* Return a text that is not empty if a setting holds a secret; called with the setting's name and its value as text. */}}
{{- define "pgsluice.holdsSecret" -}}
{{- $name := index . 0 -}}
{{- $text := index . 1 -}}
{{- $words := "password|passphrase|secret|scram_|key\\.pem|sasl\\.oauthbearer\\.config|jaas" -}}
{{- if has $name (list "postgres.password" "schema_registry.password" "schema_registry.token") -}}
yes
{{- else if has $name (list "postgres.dsn" "snapshot.primary") -}}
{{- if regexMatch (printf "(?i)((%s)[a-z_]*\\s*=|^\\s*[a-z]+://[^/@]*:[^/@]*@)" $words) $text }}yes{{ end -}}
{{- else if has $name (list "postgres.parameters" "kafka.client") -}}
{{- range $key, $_ := fromJson $text }}{{ include "pgsluice.holdsSecret" (list (printf "%s.%s" $name $key) "") }}{{ end -}}
{{- else if regexMatch (printf "^(postgres\\.parameters|kafka\\.client)\\..*(%s)" $words) $name -}}
{{- if not (hasSuffix "_file" $name) }}yes{{ end -}}
{{- end -}}
{{- end }}

{{- define "pgsluice.problems.secrets" -}}
{{- $problems := list -}}
{{- range .Values.secretSettings -}}
{{- if not (regexMatch "^(postgres\\.(password|dsn|parameters\\.[a-z_]+)|snapshot\\.primary|schema_registry\\.(password|token)|http\\.token|kafka\\.client\\.[a-z0-9._]+)$" .setting) -}}
{{- $problems = append $problems (printf "secretSettings names %s, which is not a secret setting. Secret settings are postgres.password, postgres.dsn, postgres.parameters.NAME, snapshot.primary, schema_registry.password, schema_registry.token, http.token and kafka.client.NAME. Set all other settings in config." .setting) -}}
{{- end -}}
{{- end -}}
{{- range .Values.registry.secretSettings -}}
{{- if not (or (hasPrefix "kafka.client." .setting) (eq .setting "http.token")) -}}
{{- $problems = append $problems (printf "registry.secretSettings names %s. The registry connects to Kafka only, so its secret settings are http.token and kafka.client.NAME." .setting) -}}
{{- end -}}
{{- end -}}
{{- range $place, $values := dict "" .Values "registry." .Values.registry -}}
{{- $variables := list -}}
{{- range $values.env }}{{ $variables = append $variables (include "pgsluice.settingOfVariable" .name) }}{{ end -}}
{{- $seen := list -}}
{{- range include "pgsluice.entries" $values.secretSettings | fromJsonArray -}}
{{- if has .setting $seen -}}
{{- $problems = append $problems (printf "%ssecretSettings names %s twice. Remove one of the two." $place .setting) -}}
{{- else if has .setting $variables -}}
{{- $problems = append $problems (printf "%senv and %ssecretSettings both set %s. Remove one of the two." $place $place .setting) -}}
{{- end -}}
{{- $seen = append $seen .setting -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}

{{- define "pgsluice.problems.env" -}}
{{- $problems := list -}}
{{- $owned := dict "PGSLUICE_CONFIG" "config" "PGSLUICE_HTTP__LISTEN" "listenHost" "PGSLUICE_SHUTDOWN__DRAIN_TIMEOUT" "drainTimeoutSeconds" "PGSLUICE_BUFFER__SPILL_DIR" "spill.volumeClaim" "PGSLUICE_BUFFER__SPILL_MAX" "spill.size" "PGSLUICE_SECRETS_DIR" "secretsFrom" -}}
{{- range concat .Values.env .Values.registry.env -}}
{{- if hasKey $owned .name -}}
{{- $problems = append $problems (printf "env sets %s, which the chart sets itself. Set %s instead." .name (get $owned .name)) -}}
{{- end -}}
{{- $setting := include "pgsluice.settingOfVariable" .name -}}
{{- $secret := or (regexMatch "^PG.*(PASSWORD|SECRET|TOKEN|JAAS|KEY_PEM)$" .name) (include "pgsluice.holdsSecret" (list $setting (toString .value))) -}}
{{- if and .value $secret -}}
{{- $problems = append $problems (printf "env holds a secret, %s. Everybody who may read Deployments or the values of the release could see it. Put it into a Secret, and name this Secret in secretSettings, or in valueFrom." .name) -}}
{{- end -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}

{{/* Return the full name of a setting, with dots instead of underscores in the name of a property of Kafka's client. */}}
{{- define "pgsluice.settingOf" -}}
{{- $property := trimPrefix "kafka.client." . -}}
{{- if or (eq $property .) (eq $property "log_level") }}{{ . }}{{ else }}kafka.client.{{ replace "_" "." $property }}{{ end -}}
{{- end }}

{{/* Return the name of the setting that an environment variable sets. */}}
{{- define "pgsluice.settingOfVariable" -}}
{{- include "pgsluice.settingOf" (trimPrefix "PGSLUICE_" . | lower | replace "__" ".") -}}
{{- end }}

{{- define "pgsluice.problems.extraArgs" -}}
{{- $problems := list -}}
{{- range .Values.extraArgs -}}
{{- $parts := regexSplit "=" (trimPrefix "--set=" .) 2 -}}
{{- $setting := include "pgsluice.settingOf" (first $parts | trim) -}}
{{- if include "pgsluice.holdsSecret" (list $setting (last $parts)) -}}
{{- $problems = append $problems (printf "extraArgs holds a secret, %s. Everybody who may read Deployments or the values of the release could see it. Put it into a Secret, and name this Secret in secretSettings." $setting) -}}
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
{{- $problems = append $problems "metrics.serviceMonitor needs the Service, but service.enabled is false. Set service.enabled to true, or use metrics.podMonitor instead." -}}
{{- end -}}
{{- toJson $problems -}}
{{- end }}
