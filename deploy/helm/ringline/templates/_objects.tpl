{{/* What each service has beside its pods. */}}

{{- define "ringline.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "ringline.name" . | quote }}
  labels:
    {{- include "ringline.labels" . | nindent 4 }}
spec:
  # The name resolves to the addresses of all pods that are ready.
  clusterIP: None
  selector:
    {{- include "ringline.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: {{ include "ringline.port" . }}, appProtocol: {{ ternary "https" "kubernetes.io/h2c" .root.Values.tls.enabled }}}
    - {name: metrics, port: {{ include "ringline.metricsPort" . }}}
{{- end -}}

{{- define "ringline.budget" -}}
{{- with .root.Values.disruptionBudget }}
{{- if .enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "ringline.name" $ | quote }}
  labels:
    {{- include "ringline.labels" $ | nindent 4 }}
spec:
  maxUnavailable: {{ include "ringline.text" .maxUnavailable }}
  selector:
    matchLabels:
      {{- include "ringline.selector" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A service without state, and its scaler. */}}
{{- define "ringline.deployment" -}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "ringline.name" . | quote }}
  labels:
    {{- include "ringline.labels" . | nindent 4 }}
spec:
  {{- if not .set.autoscaling.enabled }}
  replicas: {{ include "ringline.text" .set.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "ringline.selector" . | nindent 6 }}
  # Nothing is ready before an engine has loaded its model.
  progressDeadlineSeconds: {{ add 600 (int .root.Values.engine.startupSeconds) }}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata:
      {{- include "ringline.podMetadata" . | nindent 6 }}
    spec:
      {{- include "ringline.podSpec" . | nindent 6 }}
{{- with .set.autoscaling }}
{{- if .enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "ringline.name" $ | quote }}
  labels:
    {{- include "ringline.labels" $ | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "ringline.name" $ | quote }}}
  minReplicas: {{ include "ringline.text" .minReplicas }}
  maxReplicas: {{ include "ringline.text" .maxReplicas }}
  metrics:
    - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ .cpuPercent }}}}}
{{- end }}
{{- end }}
{{- end -}}
