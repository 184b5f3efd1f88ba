{{- define "restore.name" -}}
{{- if contains "restore" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-restore" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* labels of a part: (list . "worker") */}}
{{- define "restore.selector" -}}
app.kubernetes.io/name: restore
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "restore.labels" -}}
{{ include "restore.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{- define "restore.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* what a pod has in common with the others. Variables of services would be taken for flags:
that of a service "restore" is RESTORE_PORT. */}}
{{- define "restore.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "restore.container" -}}
image: {{ include "restore.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "restore.natsEnv" -}}
{{- if .Values.nats.passwordSecret }}
- name: NATS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.nats.passwordSecret }}, key: password}
{{- end }}
{{- end }}

{{- /* the flags of a fleet */}}
{{- define "restore.natsArgs" -}}
- --nats-replicas={{ .Values.nats.replicas }}
{{- if .Values.nats.credentialsSecret }}
- --nats-creds=/etc/restore/nats/creds
{{- end }}
{{- if .Values.nats.caConfigMap }}
- --nats-ca=/etc/restore/nats-ca/ca.crt
{{- end }}
{{- end }}

{{- define "restore.modelArgs" -}}
{{- with .Values.model.name }}
- --model={{ . }}
{{- end }}
{{- range .Values.model.args }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- /* downloads the model, in each pod that loads it */}}
{{- define "restore.pull" -}}
{{- if .Values.model.pull }}
initContainers:
  - name: pull
    {{- include "restore.container" . | nindent 4 }}
    args: [pull, {{ required "model.pull wants model.name, the model's name in the hub" .Values.model.name | quote }}]
    env:
      - {name: HF_HOME, value: /models}
      {{- with .Values.model.tokenSecret }}
      - name: HF_TOKEN
        valueFrom:
          secretKeyRef: {name: {{ . }}, key: token}
      {{- end }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      - {name: models, mountPath: /models}
      {{- if .Values.certificates }}
      - {name: certificates, mountPath: /etc/ssl/certs, readOnly: true}
      {{- end }}
{{- end }}
{{- end }}

{{- /* the folders of a container: (list . loads) */}}
{{- define "restore.mounts" -}}
{{- $v := (index . 0).Values }}
- {name: tmp, mountPath: /tmp}
{{- if index . 1 }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if $v.certificates }}
- {name: certificates, mountPath: /etc/ssl/certs, readOnly: true}
{{- end }}
{{- if $v.nats.credentialsSecret }}
- {name: nats, mountPath: /etc/restore/nats, readOnly: true}
{{- end }}
{{- if $v.nats.caConfigMap }}
- {name: nats-ca, mountPath: /etc/restore/nats-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "restore.volumes" -}}
{{- $v := (index . 0).Values }}
- {name: tmp, emptyDir: {}}
{{- if index . 1 }}
- name: models
  {{- toYaml ($v.model.volume | default (dict "emptyDir" dict)) | nindent 2 }}
{{- end }}
{{- with $v.certificates }}
- name: certificates
  configMap: {name: {{ . }}}
{{- end }}
{{- with $v.nats.credentialsSecret }}
- name: nats
  secret: {secretName: {{ . }}, items: [{key: creds, path: creds}]}
{{- end }}
{{- with $v.nats.caConfigMap }}
- name: nats-ca
  configMap: {name: {{ . }}}
{{- end }}
{{- end }}
