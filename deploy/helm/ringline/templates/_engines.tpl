{{/* A set of engines: root, service, set (its values) and group (its name, empty for that of .Values.engine). */}}

{{- define "ringline.engines" -}}
{{- include "ringline.checkEngines" . -}}
{{- $name := include "ringline.name" . -}}
{{- with .group }}{{ $name = printf "%s-%s" $name . }}{{ end -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "the name %s of a set of engines has %d characters, and Kubernetes adds to it: at most 52 fit, so choose a shorter release or group" $name (len $name)) -}}
{{- end -}}
{{- $labels := printf "ringline/engines: %q" (.group | default "main") -}}
{{- $volume := .root.Values.model.volume -}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name | quote }}
  labels:
    {{- include "ringline.labels" . | nindent 4 }}
spec:
  {{- if not .set.autoscaling.enabled }}
  replicas: {{ include "ringline.text" .set.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "ringline.selector" . | nindent 6 }}
      {{ $labels }}
  serviceName: {{ include "ringline.name" . | quote }}
  podManagementPolicy: Parallel
  template:
    metadata:
      {{- include "ringline.podMetadata" (merge (dict "labels" $labels) .) | nindent 6 }}
    spec:
      {{- include "ringline.podSpec" . | nindent 6 }}
  {{- if eq $volume.kind "perEngine" }}
  volumeClaimTemplates:
    - metadata: {name: models}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $volume.storageClass }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources: {requests: {storage: {{ $volume.size | quote }}}}
  {{- end }}
{{- with .set.autoscaling }}
{{- if .enabled }}
---
# Adds engines soon and removes them late, since a new one has an empty cache.
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name | quote }}
  labels:
    {{- include "ringline.labels" $ | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: {{ $name | quote }}}
  minReplicas: {{ include "ringline.text" .minReplicas }}
  maxReplicas: {{ include "ringline.text" .maxReplicas }}
  metrics:
    - type: Pods
      pods:
        metric: {name: vllm_num_requests_waiting}
        target: {type: AverageValue, averageValue: {{ include "ringline.text" .waitingRequests | quote }}}
  behavior:
    scaleUp:
      stabilizationWindowSeconds: 30
      policies: [{type: Pods, value: 2, periodSeconds: 60}]
    scaleDown:
      stabilizationWindowSeconds: 600
      policies: [{type: Pods, value: 1, periodSeconds: 300}]
{{- end }}
{{- end }}
{{- end -}}

{{- define "ringline.checkEngines" -}}
{{- $where := "engine" -}}
{{- with .group }}{{ $where = printf "engineGroups.%s" . }}{{ end -}}
{{- $ranks := mul (index .set.options "tensor-parallel-size" | default 1 | int) (index .set.options "pipeline-parallel-size" | default 1 | int) -}}
{{- $gpus := int .set.gpu.count -}}
{{- if and $gpus (ne $ranks (int64 $gpus)) -}}
{{- fail (printf "%s.gpu.count is %d, but an engine of %d ranks uses as many GPUs: set %s.options.tensor-parallel-size to %d, or the count to %d" $where $gpus $ranks $where $gpus $ranks) -}}
{{- end -}}
{{- if and .set.gpu.sharedMemory (not $gpus) -}}
{{- fail (printf "%s.gpu.sharedMemory is set, but %s.gpu.count is 0: give the engines GPUs, or leave it out" $where $where) -}}
{{- end -}}
{{- if .set.autoscaling.enabled -}}
{{- include "ringline.checkScaling" (dict "scaling" .set.autoscaling "where" $where) -}}
{{- end -}}
{{- end -}}

{{- define "ringline.checkScaling" -}}
{{- if gt (int .scaling.minReplicas) (int .scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is %d, above maxReplicas, which is %d" .where (int .scaling.minReplicas) (int .scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}
