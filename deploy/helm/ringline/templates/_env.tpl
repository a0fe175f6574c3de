{{/* Variables of a container. */}}

{{/* A value of an option as its variable has it: lists separated by commas, objects as JSON, whole numbers without an exponent. */}}
{{- define "ringline.text" -}}
{{- if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if kindIs "map" . -}}
{{- toJson . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Options that the chart sets by other values: in the container's own order, as YAML. */}}
{{- define "ringline.ownEnv" -}}
{{- $root := .root -}}
{{- if eq .service "engine" }}
- {name: RINGLINE_MODEL, value: {{ $root.Values.model.name | default "/usr/share/ringline/tiny" | quote }}}
{{- with $root.Values.model.servedName }}
- {name: RINGLINE_SERVED_MODEL_NAME, value: {{ . | quote }}}
{{- end }}
{{- with $root.Values.model.revision }}
- {name: RINGLINE_REVISION, value: {{ . | quote }}}
{{- end }}
{{- with $root.Values.model.hubToken }}
{{- if .secretName }}
- {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: {{ .secretName | quote }}, key: {{ .key | quote }}}}}
{{- end }}
{{- end }}
{{- if .set.gpu.count }}
- {name: RINGLINE_DEVICE, value: cuda}
{{- end }}
{{- else if eq .service "detokenizer" }}
- {name: RINGLINE_ENGINES, value: {{ include "ringline.address" (dict "root" $root "service" "engine") | quote }}}
{{- else if eq .service "processor" }}
- {name: RINGLINE_ENGINES, value: {{ include "ringline.address" (dict "root" $root "service" "engine") | quote }}}
- {name: RINGLINE_DETOKENIZERS, value: {{ include "ringline.address" (dict "root" $root "service" "detokenizer") | quote }}}
{{- range $name, $variable := dict "tokens" "AUTH_TOKEN_FILE" "jwks" "AUTH_JWKS_FILE" "tenants" "TENANTS_FILE" }}
{{- if (index $root.Values.auth $name).secretName }}
- {name: RINGLINE_{{ $variable }}, value: /auth/{{ $name }}}
{{- end }}
{{- end }}
{{- else }}
- {name: RINGLINE_PROCESSORS, value: {{ include "ringline.address" (dict "root" $root "service" "processor") | quote }}}
{{- end }}
{{- if and $root.Values.auth.serviceToken.secretName (ne .service "gateway") }}
- {name: RINGLINE_SERVICE_TOKEN_FILE, value: /service-token/token}
{{- end }}
{{- if $root.Values.tls.enabled }}
- {name: RINGLINE_TLS_CA_FILE, value: /certs/ca.crt}
- {name: RINGLINE_TLS_CERT_FILE, value: /certs/tls.crt}
- {name: RINGLINE_TLS_KEY_FILE, value: /certs/tls.key}
{{- end }}
{{- end -}}

{{- define "ringline.env" -}}
{{- include "ringline.ownEnv" . -}}
{{- range $name, $value := .set.options }}
- {name: RINGLINE_{{ $name | upper | replace "-" "_" }}, value: {{ include "ringline.text" $value | quote }}}
{{- end }}
{{- with .set.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
