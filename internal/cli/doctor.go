package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/daemon"
	"ravi/internal/doctor"
	runs "ravi/internal/run"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// exitWarned is the exit code of a strict doctor that found warnings, and nothing worse.
const exitWarned = 3

func addDoctor(t *command.Table) {
	t.AddGroup(command.Group{Name: "doctor", Summary: "Find what is wrong, and the command that mends it"})
	command.Add(t, command.Spec[doctorInput, doctorReport]{
		Group: "doctor", Name: "doctor", Access: command.Read, Reach: command.LocalOnly,
		Summary: "Find what is wrong, and the command that mends it",
		Long: `Looks at the state directory, the database and the audit, at the daemon and who
reaches it, at what this machine lets sandboxes do, and at what is left over.
Whether something is reached from elsewhere is not read from the configuration:
every address of every interface is dialled. It changes nothing, and shows no
secret.

For each finding it says what mends it. It ends with 1 if there are errors; with
--strict with 3 if there are warnings. A check that cannot be made is skipped,
with the reason. --only takes checks by name, such as bus.exposure, or by what
is before the dot.`,
		Examples: []command.Example{
			{Line: "ravi doctor"},
			{What: "only who reaches what", Line: "ravi doctor --only gateway --only bus --only ports"},
			{What: "for a monitor", Line: "ravi doctor --strict --json"},
		},
		Handler: examine, Print: printDoctor,
		Exit: func(r doctorReport) int {
			switch {
			case !r.OK:
				return command.ExitFailed
			case r.strict && r.Summary.Warns > 0:
				return exitWarned
			}
			return command.ExitOK
		},
	})
}

type doctorInput struct {
	Strict bool     `json:"strict" flag:"strict" host:"none" usage:"end with 3 if there are warnings"`
	Only   []string `json:"only" flag:"only" value:"CHECK" host:"none" usage:"make only this check, or those of this area; repeat for more"`
}

// doctorReport is what a doctor has to say, and how strict it is to be.
type doctorReport struct {
	doctor.Report
	strict bool
}

func examine(ctx context.Context, env *command.Env, in doctorInput) (out doctorReport, err error) {
	o, err := doctorOptions(env)
	if err != nil {
		return out, err
	}
	for _, list := range in.Only {
		for _, name := range strings.Split(list, ",") {
			if name = strings.TrimSpace(name); name != "" {
				o.Only = append(o.Only, name)
			}
		}
	}
	out.strict = in.Strict
	out.Report, err = doctor.Examine(ctx, o)
	if err != nil && ctx.Err() == nil {
		return out, command.Usage(err.Error(), "there are: "+strings.Join(doctor.Names(), ", "))
	}
	return out, err
}

// doctorOptions hands over what the checks need. The home is not made, nor its mode changed: it is only looked at.
func doctorOptions(env *command.Env) (o doctor.Options, err error) {
	if o.Home, err = config.Dir(); err != nil {
		return o, err
	}
	if o.Program, err = os.Executable(); err != nil {
		return o, err
	}
	o.Version, o.LooksSecret, o.Step = Version(), runs.LooksSecret, env.Progress.Step
	o.Config, o.ConfigErr = config.Load(o.Home)
	o.CheckConfig = func(s *store.Store) error {
		// This environment opens nothing: it has the home and the database, be it none.
		_, err := effectiveConfig(command.In(o.Home, s))
		return err
	}
	if o.ConfigErr != nil {
		return o, nil
	}
	if head := o.Config.Audit.Head; head != "" {
		o.AuditHead = head
		if !filepath.IsAbs(head) {
			o.AuditHead = filepath.Join(o.Home, head)
		}
	}
	o.Endpoints = func(v *doctor.View) []doctor.Endpoint { return endpointsOf(o.Config, v) }
	o.StaleUnit = func() (string, error) { return staleUnit(o.Program, o.Home) }
	return o, nil
}

// gatewayEndpoint is the gateway's port, as config.json has it and as the daemon has it.
func gatewayEndpoint(g config.Gateway, v *doctor.View) doctor.Endpoint {
	e := doctor.Endpoint{
		Name: "gateway", Speaks: doctor.HTTP, TLS: g.TLSCert != "" || g.TLSKey != "", Cert: g.TLSCert,
		HostKey: "gateway.host", PortKey: "gateway.port", TLSKeys: []string{"gateway.tls_cert", "gateway.tls_key"},
	}
	e.Host, e.Port = g.Address()
	e.Off = e.Port == 0
	if v != nil {
		e.Actual = v.State.Address
	}
	return e
}

// endpointsOf are the listeners of the daemon.
func endpointsOf(file *config.Config, v *doctor.View) []doctor.Endpoint {
	return append([]doctor.Endpoint{gatewayEndpoint(file.Gateway, v)}, busEndpoints(&file.Bus, v)...)
}

// busEndpoints are the bus and its WebSocket. A daemon that says nothing of a bus has none.
func busEndpoints(b *config.Bus, v *doctor.View) []doctor.Endpoint {
	e := doctor.Endpoint{
		Name: "bus", Speaks: doctor.NATS, Off: b.Off() || b.URL != "", TLS: b.TLSCert != "" || b.TLSKey != "", Cert: b.TLSCert,
		HostKey: "bus.host", PortKey: "bus.port", TLSKeys: []string{"bus.tls_cert", "bus.tls_key"},
	}
	var err error
	if e.Host, e.Port, err = b.Address(); err != nil {
		return nil // config.valid tells
	}
	web := doctor.Endpoint{Name: "bus_websocket", Speaks: doctor.WebSocket, Off: e.Off || b.WebSocket == nil, TLS: e.TLS, Cert: e.Cert,
		HostKey: "bus.websocket.host", PortKey: "bus.websocket.port", TLSKeys: e.TLSKeys}
	if b.WebSocket != nil {
		web.Host, web.Port = b.WebSocket.Host, b.WebSocket.Port
	}
	if v == nil {
		return []doctor.Endpoint{e, web}
	}
	listens := busListens(v.State)
	if listens == nil && !e.Off {
		return nil
	}
	for _, at := range listens {
		_, port, err := net.SplitHostPort(at)
		if err != nil {
			continue
		}
		if b.WebSocket != nil && port == strconv.Itoa(b.WebSocket.Port) {
			web.Actual = at
		} else if e.Actual == "" {
			e.Actual = at
		}
	}
	return []doctor.Endpoint{e, web}
}

// busListens are the addresses on which a daemon's bus listens, as its state says.
func busListens(s daemon.State) []string {
	b, err := json.Marshal(s)
	if err != nil {
		return nil
	}
	var said struct {
		Bus struct {
			Listens []string `json:"listens"`
		} `json:"bus"`
	}
	if json.Unmarshal(b, &said) != nil {
		return nil
	}
	return said.Bus.Listens
}

// statusWord is a check's outcome for people.
var statusWord = map[doctor.Status]string{doctor.Pass: "ok", doctor.Fail: "FAIL", doctor.Skip: "-"}

func printDoctor(env *command.Env, w io.Writer, r doctorReport) error {
	green, red, yellow, plain := "", "", "", ""
	if colours(env.StdoutTerminal) {
		green, red, yellow, plain = "\x1b[32m", "\x1b[1;31m", "\x1b[33m", "\x1b[0m"
	}
	if !env.Quiet {
		rows := make([][]string, len(r.Checks))
		for i, c := range r.Checks {
			rows[i] = []string{statusWord[c.Status], c.ID, c.Said}
		}
		var b strings.Builder
		if err := safe.Table(&b, widthOf(w), []safe.Column{{Title: ""}, {Title: "CHECK"}, {Title: "FOUND", Flex: true}}, rows); err != nil {
			return err
		}
		for line := range strings.Lines(b.String()) {
			switch word, _, _ := strings.Cut(line, " "); word {
			case "ok":
				line = green + word + plain + line[len(word):]
			case "FAIL":
				line = red + word + plain + line[len(word):]
			}
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
	}
	for _, f := range r.Findings {
		colour := map[doctor.Severity]string{doctor.Error: red, doctor.Warn: yellow}[f.Severity]
		fmt.Fprintf(w, "\n%s%s%s %s: %s\n", colour, f.Severity, plain, safe.Safe(f.ID), indentAfterFirst(safe.SafeText(f.Summary)))
		for _, e := range f.Evidence {
			fmt.Fprintf(w, "  %s\n", safe.Safe(e))
		}
		fmt.Fprintf(w, "  mend: %s\n", safe.Safe(f.Fix))
	}
	if env.Quiet {
		return nil
	}
	s := r.Summary
	parts := []string{fmt.Sprintf("%d passed", s.Passed)}
	for _, part := range []struct {
		n    int
		what string
	}{{s.Failed, "failed"}, {s.Skipped, "skipped"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	_, err := fmt.Fprintf(w, "\n%d checks: %s; %d errors, %d warnings\n", s.Checks, strings.Join(parts, ", "), s.Errors, s.Warns)
	return err
}
