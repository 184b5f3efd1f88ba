// Package deploy tests the chart and the compose file of /deploy with the libraries of helm,
// kubectl and compose.
package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

const chartFolder = "../../deploy/chart"

// variants are values of the chart that together reach every line of it.
var variants = map[string]string{
	"small": `
gateway: {keySecret: restore-keys}
nats: {passwordSecret: restore-nats}
`,
	"large": `
model:
  name: llava-hf/llava-1.5-7b-hf
  pull: true
  tokenSecret: hub
  args: [--quant, q4, --encoder-quant, q8]
  volume: {persistentVolumeClaim: {claimName: models}}
certificates: ca-bundle
image: {tag: 1.2.3, pullSecrets: [{name: registry}]}
nats:
  embedded: false
  url: nats://restore:$(NATS_PASSWORD)@nats:4222
  passwordSecret: restore-nats
  credentialsSecret: creds
  caConfigMap: nats-ca
  replicas: 3
gateway:
  replicas: 2
  keySecret: restore-keys
  args: [--n-vis, "64"]
  state: {size: 20Gi, storageClass: fast}
  nodeSelector: {pool: small}
  tolerations: [{key: a, operator: Exists}]
worker:
  args: [--parallel, "8"]
  resources: {limits: {cpu: 8, memory: 16Gi}, requests: {cpu: 8, memory: 16Gi}}
  nodeSelector: {pool: large}
  tolerations: [{key: a, operator: Exists}]
autoscaling: {enabled: true}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
networkPolicy:
  enabled: true
  clients: [{namespaceSelector: {}}]
  egress: [{ports: [{port: 8443}]}]
`,
	"open": `
model: {name: /models/m.rst, pull: true}
nats: {passwordSecret: restore-nats}
gateway: {allowNoKey: true}
autoscaling: {enabled: true}
serviceMonitor: {enabled: true}
networkPolicy: {enabled: true}
`,
}

func values(t *testing.T, text string) (v map[string]any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// render returns the chart's objects as JSON, by kind and name.
func render(t *testing.T, text string) (map[string][]byte, error) {
	t.Helper()
	c, err := loader.LoadDir(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(c, values(t, text), common.ReleaseOptions{
		Name: "restore", Namespace: "vision", IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := (engine.Engine{Strict: true}).Render(c, all)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, content := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for doc := range strings.SplitSeq("\n"+content, "\n---") {
			data, err := utilyaml.ToJSON([]byte(doc))
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, doc)
			}
			var o struct {
				Kind     string
				Metadata struct{ Name string }
			}
			if err := json.Unmarshal(data, &o); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if o.Kind != "" {
				out[o.Kind+"/"+o.Metadata.Name] = data
			}
		}
	}
	return out, nil
}

// Ensure that helm's linter has nothing against the chart.
func TestLint(t *testing.T) {
	for name, text := range variants {
		for _, m := range lint.RunAll(chartFolder, values(t, text), "vision").Messages {
			if !strings.Contains(m.Error(), "icon is recommended") {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// Ensure that every object has only fields that Kubernetes, KEDA and the Prometheus operator know,
// and that the optional objects are there when asked for.
func TestSchemas(t *testing.T) {
	s := newSchemas(t)
	kinds := map[string]int{"small": 6, "large": 11, "open": 11}
	for name, text := range variants {
		objects, err := render(t, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for object, data := range objects {
			if err := s.check(data); err != nil {
				t.Errorf("%s: %s: %v", name, object, err)
			}
		}
		if len(objects) != kinds[name] {
			t.Errorf("%s: got %v, want %d objects", name,
				slices.Sorted(maps.Keys(objects)), kinds[name])
		}
	}
}

// Ensure that values that cannot work are refused, and that the error names the missing one.
func TestValuesRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                          "gateway.keySecret",
		`gateway: {allowNoKey: true}`: "nats.passwordSecret",
		`gateway: {keys: a}`:          "additional properties 'keys' not allowed",
		`worker: {drainSeconds: 25s}`: "got string, want integer",
		`worker: {replicas: 0}`:       "minimum: got 0, want 1",
		`{gateway: {allowNoKey: true}, nats: {embedded: false}}`:                        "wants nats.url",
		`{gateway: {allowNoKey: true, replicas: 2}, nats: {passwordSecret: a}}`:         "several gateways",
		`{gateway: {allowNoKey: true}, nats: {passwordSecret: a, url: b}}`:              "embedded=false",
		`{gateway: {allowNoKey: true}, nats: {passwordSecret: a}, model: {pull: true}}`: "model.name",
	} {
		if _, err := render(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// pods returns the pods of a rendered chart by component.
func pods(t *testing.T, objects map[string][]byte) map[string]*core.PodTemplateSpec {
	t.Helper()
	var gateway apps.StatefulSet
	var worker apps.Deployment
	for name, v := range map[string]any{
		"StatefulSet/restore-gateway": &gateway, "Deployment/restore-worker": &worker} {
		if err := yaml.UnmarshalStrict(objects[name], v); err != nil {
			t.Fatal(name, err)
		}
	}
	return map[string]*core.PodTemplateSpec{
		"gateway": &gateway.Spec.Template, "worker": &worker.Spec.Template}
}

// Ensure that containers cannot write their files, that no Service's variable becomes a flag, that
// folders which are mounted exist, and that the grace of a pod is longer than its drain.
func TestPods(t *testing.T) {
	for name, text := range variants {
		objects, err := render(t, text)
		if err != nil {
			t.Fatal(err)
		}
		for part, pod := range pods(t, objects) {
			for _, problem := range problems(&pod.Spec) {
				t.Errorf("%s: %s: %s", name, part, problem)
			}
		}
	}
}

// problems returns the faults of a pod.
func problems(p *core.PodSpec) (out []string) {
	check := func(ok bool, what string) {
		if !ok {
			out = append(out, what)
		}
	}
	yes := func(b *bool) bool { return b != nil && *b }
	no := func(b *bool) bool { return b != nil && !*b }
	check(no(p.EnableServiceLinks), "variables of services")
	check(no(p.AutomountServiceAccountToken), "a token of the cluster")
	volumes := map[string]bool{"state": true} // of the gateway's claim
	for _, v := range p.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		check(c.SecurityContext != nil && yes(c.SecurityContext.ReadOnlyRootFilesystem),
			c.Name+": writes its files")
		for _, m := range c.VolumeMounts {
			check(volumes[m.Name], c.Name+": no volume "+m.Name)
		}
		said := strings.Join(c.Args, " ")
		for _, e := range c.Env {
			said += " " + e.Value
		}
		ports := map[string]bool{}
		for _, p := range c.Ports {
			ports[p.Name] = true
			number := fmt.Sprint(p.ContainerPort)
			check(strings.Contains(said, "port="+number) || strings.Contains(said, ":"+number),
				c.Name+": nothing listens at "+number)
		}
		for _, probe := range []*core.Probe{c.ReadinessProbe, c.LivenessProbe} {
			check(probe == nil || ports[probe.HTTPGet.Port.StrVal], c.Name+": port of a probe")
		}
	}
	main := &p.Containers[0]
	check(main.ReadinessProbe != nil && main.LivenessProbe != nil, "no probes")
	var drain time.Duration
	for _, a := range main.Args {
		if v, ok := strings.CutPrefix(a, "--drain-timeout="); ok {
			drain, _ = time.ParseDuration(v)
		}
	}
	grace := time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	check(drain > 0 && grace >= drain+10*time.Second, "the grace does not fit the drain")
	return out
}

// Ensure that a worker's and a gateway's services, monitors and scaling name ports and objects that
// exist.
func TestNames(t *testing.T) {
	objects, err := render(t, variants["large"])
	if err != nil {
		t.Fatal(err)
	}
	all := pods(t, objects)
	for part, pod := range all {
		var service core.Service
		if err := yaml.UnmarshalStrict(objects["Service/restore-"+part], &service); err != nil {
			t.Fatal(err)
		}
		for k, v := range service.Spec.Selector {
			if pod.Labels[k] != v {
				t.Errorf("service of %s: got %s=%q, want %q", part, k, v, pod.Labels[k])
			}
		}
		port := service.Spec.Ports[0]
		if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p core.ContainerPort) bool {
			return p.Name == port.TargetPort.StrVal
		}) {
			t.Errorf("service of %s: got port %s, want one of the pod", part,
				port.TargetPort.StrVal)
		}
		monitor := string(objects["ServiceMonitor/restore-"+part])
		if !strings.Contains(monitor, fmt.Sprintf(`"port":%q`, port.Name)) {
			t.Errorf("monitor of %s: got %s, want port %s", part, monitor, port.Name)
		}
	}
	scaled := string(objects["ScaledObject/restore-worker"])
	for _, want := range []string{`"scaleTargetRef":{"name":"restore-worker"}`,
		`http://restore-gateway.vision.svc:8642/metrics`, `"name":"restore-metrics"`} {
		if !strings.Contains(scaled, want) {
			t.Errorf("got %s, want %s", scaled, want)
		}
	}
}

// Ensure that the compose file is one, that no container has rights that it does not need, and that
// a container has longer to stop than its drain.
func TestCompose(t *testing.T) {
	load := func(env ...string) (*types.Project, error) {
		o, err := cli.NewProjectOptions([]string{"../../deploy/compose.yaml"}, cli.WithEnv(env))
		if err != nil {
			t.Fatal(err)
		}
		return o.LoadProject(t.Context())
	}
	if _, err := load("API_KEY=a"); err == nil || !strings.Contains(err.Error(), "NATS_PASSWORD") {
		t.Errorf("without a password: got %v, want an error that names it", err)
	}
	p, err := load("API_KEY=a", "NATS_PASSWORD=b", "WORKERS=4")
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Services["worker"].Deploy.Replicas; n == nil || *n != 4 {
		t.Errorf("got %v workers, want 4", n)
	}
	for name, s := range p.Services {
		if !s.ReadOnly || s.User == "" || !slices.Equal(s.CapDrop, []string{"ALL"}) ||
			!slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: has rights that it does not need", name)
		}
		var drain time.Duration
		for _, a := range s.Command {
			if v, ok := strings.CutPrefix(a, "--drain-timeout="); ok {
				drain, _ = time.ParseDuration(v)
			}
		}
		if grace := time.Duration(*s.StopGracePeriod); drain == 0 || grace < drain+10*time.Second {
			t.Errorf("%s: got %v to stop, want more than its drain of %v", name, grace, drain)
		}
	}
}

// Ensure that namespaces which enforce the standard "restricted" admit the pods.
func TestRestricted(t *testing.T) {
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for name, text := range variants {
		objects, err := render(t, text)
		if err != nil {
			t.Fatal(err)
		}
		for part, pod := range pods(t, objects) {
			for _, r := range checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
				if !r.Allowed {
					t.Errorf("%s: %s: %s: %s", name, part, r.ForbiddenReason, r.ForbiddenDetail)
				}
			}
		}
	}
}
