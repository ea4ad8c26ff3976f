package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"ravi/internal/config"
)

const folder = "../../deploy"

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// documents are those of a YAML file, as T has them.
func documents[T any](t *testing.T, name string) (out []T) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(read(t, name)))
	for {
		var any map[string]any
		err := d.Decode(&any)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(name, err)
		}
		b, err := json.Marshal(any)
		if err != nil {
			t.Fatal(name, err)
		}
		var one T
		if err := json.Unmarshal(b, &one); err != nil {
			t.Fatal(name, err)
		}
		out = append(out, one)
	}
}

func parse(t *testing.T, name, text string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(text), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type service struct {
	Image       string
	Ports       []string
	User        string
	Privileged  bool
	NetworkMode string `json:"network_mode"`
	Networks    any
	CapAdd      []string `json:"cap_add"`
	CapDrop     []string `json:"cap_drop"`
	Security    []string `json:"security_opt"`
	Command     []string
	Volumes     []string
	Secrets     []string
}

// on are the networks of a service, and its addresses there.
func (s service) on(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	switch n := s.Networks.(type) {
	case nil:
	case []any:
		for _, name := range n {
			out[fmt.Sprint(name)] = ""
		}
	case map[string]any:
		for name, v := range n {
			if m, ok := v.(map[string]any); ok {
				out[name] = fmt.Sprint(m["ipv4_address"])
			}
		}
	default:
		t.Fatalf("networks are %T", n)
	}
	return out
}

// With Compose nothing is published but 443 of the proxy, and the bus is on the private network only.
func TestCompose(t *testing.T) {
	var file struct {
		Services map[string]service
		Networks map[string]struct {
			Internal bool
			IPAM     struct {
				Config []struct{ Subnet netip.Prefix }
			}
		}
		Secrets map[string]struct{ File string }
		Volumes map[string]any
	}
	docs := documents[json.RawMessage](t, "compose/docker-compose.yml")
	if len(docs) != 1 {
		t.Fatal(len(docs), "documents")
	}
	if err := json.Unmarshal(docs[0], &file); err != nil {
		t.Fatal(err)
	}
	conf := parse(t, "compose/config.json", read(t, "compose/config.json"))
	bus, gateway := netip.MustParseAddr(conf.Bus.Host), netip.MustParseAddr(conf.Gateway.Host)
	private := file.Networks["bus"]
	if !private.Internal || !private.IPAM.Config[0].Subnet.Contains(bus) || conf.Bus.AllowFrom[0] != private.IPAM.Config[0].Subnet {
		t.Errorf("the bus at %v, from %v, is not on the private network %+v", bus, conf.Bus.AllowFrom, private)
	}
	if edge := file.Networks["edge"].IPAM.Config[0].Subnet; !edge.Contains(gateway) || edge.Overlaps(private.IPAM.Config[0].Subnet) {
		t.Errorf("the gateway at %v is not where the proxy is, %v", gateway, edge)
	}
	if on := file.Services["ravi"].on(t); on["bus"] != bus.String() || on["edge"] != gateway.String() || len(on) != 2 {
		t.Errorf("ravi is on %v", on)
	}
	if made := file.Services["setup"].Command[0]; !strings.Contains(made, bus.String()) || !strings.Contains(made, gateway.String()) {
		t.Errorf("the certificate is not for %v and %v: %s", bus, gateway, made)
	}
	for name, s := range file.Services {
		on := s.on(t)
		_, onBus := on["bus"]
		if name == "proxy" {
			if !slices.Equal(s.Ports, []string{"443:443"}) || onBus {
				t.Errorf("the proxy publishes %v, and is on %v", s.Ports, on)
			}
			continue
		}
		if len(s.Ports) > 0 || s.NetworkMode != "" && s.NetworkMode != "none" {
			t.Errorf("%s is published: %v %s", name, s.Ports, s.NetworkMode)
		}
		if s.Privileged || len(s.CapAdd) > 0 || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.Security, "no-new-privileges:true") || s.User != "1000:1000" {
			t.Errorf("%s has more rights than it needs: %+v", name, s)
		}
		if _, edge := on["edge"]; edge && name != "ravi" {
			t.Errorf("%s is where the proxy is", name)
		}
		for _, v := range s.Volumes {
			if source, _, _ := strings.Cut(v, ":"); strings.Contains(source, "docker.sock") || filepath.IsAbs(source) {
				t.Errorf("%s is given %s of the host", name, source)
			}
		}
		for _, secret := range s.Secrets {
			if file.Secrets[secret].File == "" {
				t.Errorf("%s has a secret that is none: %s", name, secret)
			}
		}
	}
	if text := read(t, "compose/docker-compose.yml") + read(t, "compose/config.json"); strings.Contains(text, "0.0.0.0") {
		t.Error("something listens everywhere")
	}
}

// The image has an ordinary user, and is built with the Go of go.mod.
func TestDockerfile(t *testing.T) {
	file := read(t, "Dockerfile")
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(mod) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "go "); ok {
			minor := strings.Join(strings.Split(version, ".")[:2], ".")
			if !strings.Contains(file, "FROM golang:"+minor+"-") {
				t.Errorf("the image is not built with Go %s", minor)
			}
		}
	}
	_, last, _ := strings.Cut(file, "FROM debian")
	if !strings.Contains(last, "\nUSER ravi\n") || strings.Contains(file, "EXPOSE") || strings.Contains(file, "--privileged") {
		t.Error("the image's user is not an ordinary one, or it exposes a port")
	}
	// Git's folder and what was built here stay out of the image's context.
	ignored, err := os.ReadFile(filepath.Join(folder, "Dockerfile.dockerignore"))
	if err != nil || !strings.Contains(string(ignored), "bin") {
		t.Error(err)
	}
}

type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
	Spec     struct {
		Type        string
		PodSelector struct{ MatchLabels map[string]string }
		PolicyTypes []string
		Ingress     []rule
		Egress      []rule
		Ports       []struct{ Port int }
		ServiceName string
		Replicas    int
		Template    struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				HostUsers                    *bool
				HostNetwork                  bool
				AutomountServiceAccountToken *bool
				SecurityContext              struct{ RunAsNonRoot bool }
				InitContainers               []container
				Containers                   []container
			}
		}
	}
}

type rule struct {
	From, To []struct {
		PodSelector *struct{ MatchLabels map[string]string }
		IPBlock     *struct {
			CIDR   netip.Prefix
			Except []netip.Prefix
		}
	}
	Ports []struct{ Port int }
}

type container struct {
	Name            string
	SecurityContext struct {
		Privileged               bool
		AllowPrivilegeEscalation *bool
		Capabilities             struct{ Add, Drop []string }
	}
}

const component = "app.kubernetes.io/component"

// In Kubernetes the bus is for runners and the gateway for the proxy, told by their labels; pods have no rights on the node.
func TestKubernetes(t *testing.T) {
	var all []object
	for _, name := range []string{"base", "daemon", "runner", "proxy"} {
		all = append(all, documents[object](t, "kubernetes/"+name+".yaml")...)
	}
	deniesAll := false
	// reach are the components from which those of another are reached, by port.
	reach := map[string][]string{}
	components := map[string]bool{}
	for _, o := range all {
		what := o.Kind + " " + o.Metadata.Name
		if o.Kind != "Namespace" && o.Metadata.Namespace != "ravi" {
			t.Errorf("%s is elsewhere", what)
		}
		switch o.Kind {
		case "NetworkPolicy":
			selected := o.Spec.PodSelector.MatchLabels[component]
			if len(o.Spec.PodSelector.MatchLabels) == 0 && len(o.Spec.Ingress)+len(o.Spec.Egress) == 0 && len(o.Spec.PolicyTypes) == 2 {
				deniesAll = true
			}
			for _, in := range o.Spec.Ingress {
				for _, p := range in.Ports {
					to := fmt.Sprint(selected, ":", p.Port)
					if len(in.From) == 0 {
						reach[to] = append(reach[to], "everybody")
					}
					for _, f := range in.From {
						if f.PodSelector == nil || f.IPBlock != nil {
							t.Errorf("%s lets in by address", what)
							continue
						}
						reach[to] = append(reach[to], f.PodSelector.MatchLabels[component])
					}
				}
				if len(in.Ports) == 0 {
					t.Errorf("%s opens every port", what)
				}
			}
			for _, out := range o.Spec.Egress {
				for _, to := range out.To {
					if b := to.IPBlock; b != nil && (len(b.Except) < 5 || b.CIDR.Bits() != 0) {
						t.Errorf("%s lets out to what is private: %+v", what, b)
					}
				}
			}
		case "Service":
			if o.Spec.Type != "" && (o.Metadata.Name != "ravi-proxy" || len(o.Spec.Ports) != 1 || o.Spec.Ports[0].Port != 443) {
				t.Errorf("%s is open to the world", what)
			}
		case "StatefulSet", "Deployment":
			pod := o.Spec.Template.Spec
			label := o.Spec.Template.Metadata.Labels[component]
			components[label] = true
			if pod.HostNetwork || !pod.SecurityContext.RunAsNonRoot || pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
				t.Errorf("%s has more of the node, or of the cluster, than it needs", what)
			}
			if label != "proxy" && (pod.HostUsers == nil || *pod.HostUsers) {
				t.Errorf("%s has the node's users", what)
			}
			if label == "daemon" && o.Spec.Replicas != 1 {
				t.Errorf("there are %d daemons of one record", o.Spec.Replicas)
			}
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				x := c.SecurityContext
				if x.Privileged || x.AllowPrivilegeEscalation == nil || *x.AllowPrivilegeEscalation || len(x.Capabilities.Add) > 0 || !slices.Equal(x.Capabilities.Drop, []string{"ALL"}) {
					t.Errorf("%s: %s has rights: %+v", what, c.Name, x)
				}
			}
		}
		if text := o.Data["config.json"]; text != "" {
			// The bus listens on the pod's own address, which the daemon is told in RAVI_BUS_HOST.
			if c := parse(t, what, text); c.Bus.Host != "" || c.Bus.TLSCert == "" || c.Gateway.TLSCert == "" || c.Dispatch.Runs != -1 {
				t.Errorf("%s: %+v", what, c)
			}
		}
	}
	if !deniesAll {
		t.Error("what no policy names is open")
	}
	want := map[string]string{"daemon:4222": "runner", "daemon:7777": "proxy", "proxy:8443": "everybody"}
	for to, from := range reach {
		if want[to] == "" || !slices.Equal(from, []string{want[to]}) {
			t.Errorf("%s is reached by %v", to, from)
		}
	}
	if len(reach) != len(want) || len(components) != 3 {
		t.Errorf("reached are %v of %v", reach, components)
	}
}
