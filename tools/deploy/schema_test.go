package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	crdv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	prototesting "k8s.io/kube-openapi/pkg/util/proto/testing"
	"k8s.io/kube-openapi/pkg/util/proto/validation"
	"k8s.io/kubectl/pkg/util/openapi"
	"sigs.k8s.io/yaml"
)

// schemas knows the fields of kinds: Kubernetes kinds as kubectl does, and definitions of other
// kinds as the API server does.
type schemas struct {
	kubernetes  openapi.Resources
	definitions map[metav1.GroupVersionKind]*definition
}

// definition is a version of a kind in a CustomResourceDefinition.
type definition struct {
	fields *schema.Structural
	values crdvalidation.SchemaValidator
}

// moduleFile is the path of a file of a module that schemas/go.mod names.
func moduleFile(t *testing.T, module, name string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = "schemas"
	out, err := cmd.Output()
	var m struct{ Dir string }
	if err := errors.Join(err, json.Unmarshal(out, &m)); err != nil || m.Dir == "" {
		t.Fatalf("go mod download -json %s: got %s, %v", module, out, err)
	}
	return filepath.Join(m.Dir, name)
}

func newSchemas(t *testing.T) *schemas {
	t.Helper()
	doc, err := (&prototesting.Fake{
		Path: moduleFile(t, "k8s.io/kubernetes", "api/openapi-spec/swagger.json"),
	}).OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	s := &schemas{definitions: map[metav1.GroupVersionKind]*definition{}}
	if s.kubernetes, err = openapi.NewOpenAPIData(doc); err != nil {
		t.Fatal(err)
	}
	const keda, operator = "github.com/kedacore/keda/v2",
		"github.com/prometheus-operator/prometheus-operator"
	for _, path := range []string{
		moduleFile(t, keda, "config/crd/bases/keda.sh_scaledobjects.yaml"),
		moduleFile(t, keda, "config/crd/bases/keda.sh_triggerauthentications.yaml"),
		moduleFile(t, operator,
			"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"),
	} {
		if err := s.define(path); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return s
}

// define reads a file with a CustomResourceDefinition.
func (s *schemas) define(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var crd crdv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		return err
	}
	for _, v := range crd.Spec.Versions {
		var in apiextensions.JSONSchemaProps
		err := crdv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
			v.Schema.OpenAPIV3Schema, &in, nil)
		if err != nil {
			return err
		}
		d := new(definition)
		if d.fields, err = schema.NewStructural(&in); err != nil {
			return err
		}
		if d.values, _, err = crdvalidation.NewSchemaValidator(&in); err != nil {
			return err
		}
		s.definitions[metav1.GroupVersionKind{
			Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}] = d
	}
	return nil
}

// check returns the first fault of an object as JSON: an unknown kind, an unknown or missing field,
// or a value of another type.
func (s *schemas) check(data []byte) error {
	var o map[string]any
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(data, &meta); err != nil {
		return err
	}
	gvk := meta.GroupVersionKind()
	if model := s.kubernetes.LookupResource(gvk); model != nil {
		return errors.Join(validation.ValidateModel(o, model, gvk.Kind)...)
	}
	d := s.definitions[metav1.GroupVersionKind(gvk)]
	if d == nil {
		return fmt.Errorf("%v: unknown kind", gvk)
	}
	wrong := crdvalidation.ValidateCustomResource(nil, o, d.values)
	unknown := pruning.PruneWithOptions(o, d.fields, true,
		schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if len(unknown) > 0 {
		return fmt.Errorf("unknown fields %v", unknown)
	}
	if len(wrong) > 0 {
		return wrong.ToAggregate()
	}
	return nil
}

// Ensure that the schemas refuse what the API server or KEDA would refuse, or drop.
func TestSchemasRefuse(t *testing.T) {
	s := newSchemas(t)
	objects, err := render(t, variants["large"])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ object, old, new string }{
		{"Deployment/restore-worker", `"readOnlyRootFilesystem"`, `"readOnlyRootFileSystem"`},
		{"Deployment/restore-worker", `"containerPort":9464`, `"containerPort":"metrics"`},
		{"StatefulSet/restore-gateway", `"serviceName"`, `"service"`},
		{"Service/restore-worker", `"port":9464,`, ``},
		{"ScaledObject/restore-worker", `"minReplicaCount"`, `"minReplicas"`},
		{"ScaledObject/restore-worker", `"type":"metrics-api"`, `"type":1`},
		{"ScaledObject/restore-worker", `"scaleTargetRef"`, `"target"`},
		{"ServiceMonitor/restore-gateway", `"credentials"`, `"secret"`},
		{"ServiceMonitor/restore-gateway", `"kind":"ServiceMonitor"`, `"kind":"Monitor"`},
	} {
		good := objects[c.object]
		bad := bytes.Replace(good, []byte(c.old), []byte(c.new), 1)
		if good == nil || bytes.Equal(good, bad) {
			t.Errorf("%s: has no %s", c.object, c.old)
		} else if err := s.check(bad); err == nil {
			t.Errorf("%s with %s for %s: got no error", c.object, c.new, c.old)
		}
	}
}
