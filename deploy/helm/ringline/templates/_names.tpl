{{/* Names, labels and images. Those about one service take a dict: root (the chart's scope) and service (its name). */}}

{{- define "ringline.prefix" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name -}}
{{- if gt (len $name) 40 -}}
{{- fail (printf "the name %s has %d characters, and names of objects begin with it: at most 40 fit, so choose a shorter release, or set fullnameOverride" $name (len $name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) -}}
{{- fail (printf "the name %s begins the names of services, which have letters, digits and hyphens and begin with a letter: choose another release, or set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "ringline.name" -}}
{{ include "ringline.prefix" .root }}-{{ .service }}
{{- end -}}

{{/* By these a service's pods are found; they never change. */}}
{{- define "ringline.selector" -}}
app.kubernetes.io/name: {{ .service }}
app.kubernetes.io/part-of: ringline
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end -}}

{{- define "ringline.labels" -}}
{{ include "ringline.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | trunc 63 | trimAll "-._" | quote }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "ringline.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $image.prefix }}-{{ .image | default .service }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "ringline.port" -}}
{{ index (dict "engine" 50061 "detokenizer" 50071 "processor" 50051 "gateway" 8000) .service }}
{{- end -}}

{{- define "ringline.metricsPort" -}}
{{ add (include "ringline.port" . | int) 10000 }}
{{- end -}}

{{/* Where peers find a service. */}}
{{- define "ringline.address" -}}
{{ include "ringline.name" . }}:{{ include "ringline.port" . }}
{{- end -}}

{{- define "ringline.tlsSecret" -}}
{{ index .root.Values.tls.secretNames .service | default (printf "%s-tls" (include "ringline.name" .)) }}
{{- end -}}
