{{/* The pod of a service: root, service, set (the service's values) and labels (YAML, beside the selector's). */}}

{{- define "ringline.podMetadata" -}}
labels:
  {{- include "ringline.selector" . | nindent 2 }}
  {{- with .labels }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .set.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := dict }}
{{- if .root.Values.monitoring.scrapeAnnotations }}
{{- $annotations = dict "prometheus.io/scrape" "true" "prometheus.io/port" (include "ringline.metricsPort" .) }}
{{- end }}
{{- with merge (dict) .set.podAnnotations $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Readiness asks whether requests can be served; liveness whether the process makes progress: without an engine the
other services are not ready, but to restart them would not help. The start of an engine ends when it can serve. */}}
{{- define "ringline.probes" -}}
{{- $port := include "ringline.port" . -}}
{{- $ready := printf "grpc: {port: %s}" $port -}}
{{- $alive := printf "grpc: {port: %s, service: liveness}" $port -}}
{{- if or .root.Values.tls.enabled (eq .service "gateway") -}}
{{- $ready = "httpGet: {path: /health, port: metrics}" -}}
{{- $alive = "httpGet: {path: /live, port: metrics}" -}}
{{- end -}}
{{- $started := ternary $ready $alive (eq .service "engine") -}}
startupProbe: { {{- $started }}, periodSeconds: 5, failureThreshold: {{ divf .set.startupSeconds 5 | ceil | int }}}
readinessProbe: { {{- $ready }}, periodSeconds: 5, failureThreshold: 2}
livenessProbe: { {{- $alive }}, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 3}
{{- end -}}

{{- define "ringline.resources" -}}
{{- $set := .set -}}
{{- $gpus := 0 -}}
{{- if eq .service "engine" }}{{ $gpus = int $set.gpu.count }}{{ end -}}
{{- $memory := $set.memory | default (ternary "32Gi" "8Gi" (gt $gpus 0)) -}}
{{- $requests := dict "cpu" (include "ringline.text" $set.cpu) "memory" $memory -}}
{{- $limits := dict "memory" $memory -}}
{{- with $set.cpuLimit }}{{ $_ := set $limits "cpu" (include "ringline.text" .) }}{{ end -}}
{{- if $gpus }}{{ $_ := set $limits "nvidia.com/gpu" (toString $gpus) }}{{ end -}}
{{- toYaml (mergeOverwrite (dict "requests" $requests "limits" $limits) (deepCopy $set.resources)) -}}
{{- end -}}

{{- define "ringline.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if eq .service "engine" }}
- {name: models, mountPath: /models{{ if .root.Values.model.volume.readOnly }}, readOnly: true{{ end }}}
{{- if .set.gpu.count }}
- {name: kernels, mountPath: /cache}
{{- if .set.gpu.sharedMemory }}
- {name: shared-memory, mountPath: /dev/shm}
{{- end }}
{{- end }}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: certs, mountPath: /certs, readOnly: true}
{{- end }}
{{- if include "ringline.authSources" . }}
- {name: auth, mountPath: /auth, readOnly: true}
{{- end }}
{{- if and .root.Values.auth.serviceToken.secretName (ne .service "gateway") }}
- {name: service-token, mountPath: /service-token, readOnly: true}
{{- end }}
{{- end -}}

{{- define "ringline.volumes" -}}
- {name: tmp, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
{{- if eq .service "engine" }}
{{- $volume := .root.Values.model.volume }}
{{- if eq $volume.kind "claim" }}
- {name: models, persistentVolumeClaim: {claimName: {{ $volume.claimName | quote }}}}
{{- else if eq $volume.kind "hostPath" }}
- {name: models, hostPath: {path: {{ $volume.path | quote }}, type: Directory}}
{{- else if eq $volume.kind "emptyDir" }}
- {name: models, emptyDir: {sizeLimit: {{ $volume.size | quote }}}}
{{- end }}
{{- if .set.gpu.count }}
- {name: kernels, emptyDir: {sizeLimit: {{ .set.gpu.kernelCache | quote }}}}
{{- with .set.gpu.sharedMemory }}
- {name: shared-memory, emptyDir: {medium: Memory, sizeLimit: {{ . | quote }}}}
{{- end }}
{{- end }}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: certs, secret: {secretName: {{ include "ringline.tlsSecret" . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with include "ringline.authSources" . }}
- name: auth
  projected:
    defaultMode: 0440
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- with .root.Values.auth.serviceToken }}
{{- if and .secretName (ne $.service "gateway") }}
- {name: service-token, secret: {secretName: {{ .secretName | quote }}, defaultMode: 0440, items: [{key: {{ .key | quote }}, path: token}]}}
{{- end }}
{{- end }}
{{- end -}}

{{/* The processor's files of tokens and tenants, from their secrets. */}}
{{- define "ringline.authSources" -}}
{{- if eq .service "processor" -}}
{{- range $name := list "tokens" "jwks" "tenants" }}
{{- with index $.root.Values.auth $name }}
{{- if .secretName }}
- secret: {name: {{ .secretName | quote }}, items: [{key: {{ .key | quote }}, path: {{ $name }}}]}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "ringline.placement" -}}
{{- with .set.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := .set.tolerations }}
{{- if eq .service "engine" }}
{{- if .set.gpu.count }}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with .set.gpu.runtimeClass }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .set.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .set.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .root.Values.topologySpread }}
{{- if .enabled }}
topologySpreadConstraints:
  - maxSkew: {{ include "ringline.text" .maxSkew }}
    topologyKey: {{ .topologyKey | quote }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "ringline.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "ringline.podSpec" -}}
{{- $gpu := and (eq .service "engine") (ne (int (dig "gpu" "count" 0 .set)) 0) -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
# preStop, --drain-grace and a margin
terminationGracePeriodSeconds: {{ include "ringline.grace" . }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- include "ringline.placement" . }}
containers:
  - name: {{ .service }}
    image: {{ include "ringline.image" (merge (dict "image" (ternary "engine-cuda" .service $gpu)) .) | quote }}
    {{- with .root.Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    env:
      {{- include "ringline.env" . | trim | nindent 6 }}
    ports:
      - {name: {{ ternary "http" "grpc" (eq .service "gateway") }}, containerPort: {{ include "ringline.port" . }}}
      - {name: metrics, containerPort: {{ include "ringline.metricsPort" . }}}
    {{- include "ringline.probes" . | nindent 4 }}
    # New requests go to other pods before SIGTERM starts the drain.
    lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
    resources:
      {{- include "ringline.resources" . | nindent 6 }}
    securityContext:
      {{- toYaml .root.Values.securityContext | nindent 6 }}
    volumeMounts:
      {{- include "ringline.mounts" . | nindent 6 }}
volumes:
  {{- include "ringline.volumes" . | nindent 2 }}
{{- end -}}

{{/* How long a pod may take to end: 5 seconds of preStop, the drain, which takes 30 by default, and a margin. */}}
{{- define "ringline.grace" -}}
{{ index .set.options "drain-grace" | default 30 | toString | float64 | ceil | int | add 30 }}
{{- end -}}
