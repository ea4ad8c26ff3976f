package doctor

import (
	"context"
	"encoding/json"

	"ravi/internal/daemon"
)

// busWorks asks the daemon how its bus is: the server's own view, and its connection to it.
func busWorks(_ context.Context, p *patient) (r result) {
	if p.view == nil {
		return skipped(noDaemon)
	}
	if p.view.Info == nil {
		return skipped("the daemon does not answer: see daemon.answers")
	}
	var said struct {
		Bus *daemon.BusNow `json:"bus"`
	}
	if err := json.Unmarshal(p.view.Info, &said); err != nil {
		return skipped("what the daemon says of its bus cannot be read: %v", err)
	}
	if said.Bus == nil {
		return skipped("the daemon has no bus")
	}
	b := said.Bus
	url := ""
	if p.view.State.Bus != nil {
		url = p.view.State.Bus.URL
	}
	if b.Away != "" {
		r.find(Error, "bus.away", "", "see that a server answers at "+url+", and takes the credential in config.json; the daemon connects by itself",
			"the daemon is not connected to the bus at %s: %s. Messages wait", url, b.Away)
	}
	if b.Problem != "" {
		fix := "free room on the disk of " + quote(p.Home) + "; the bus goes on by itself"
		if b.MaxStore > 0 && b.Stored >= uint64(b.MaxStore)/10*9 {
			fix = "ravi config set bus.max_store_mb TWICE-AS-MUCH, and ravi daemon restart"
		}
		r.find(Error, "bus.full", "", fix, "%s. Messages wait", b.Problem)
	}
	if b.Hub != "" && !b.HubJoined {
		r.find(Error, "bus.hub_not_joined", "", "see that a server takes leaf nodes at "+b.Hub+", and the credential in bus.leaf.creds; the bus joins by itself",
			"the bus has not joined the hub at %s, so runners there are not heard", b.Hub)
		if b.HubSays != "" {
			r.findings[len(r.findings)-1].Evidence = []string{b.HubSays}
		}
	}
	if b.Hub != "" && b.HubJoined {
		return r.saying("at %s; it has joined %s", url, b.Hub)
	}
	return r.saying("at %s", url)
}
