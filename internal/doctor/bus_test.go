package doctor

import (
	"context"
	"slices"
	"strings"
	"testing"

	"ravi/internal/daemon"
)

// What the daemon says of its bus.
func TestBusWorks(t *testing.T) {
	for name, c := range map[string]struct {
		info string
		want []string
		fix  string
	}{
		"well":            {info: `{"bus":{"stored":5,"max_store":100}}`},
		"joined":          {info: `{"bus":{"hub":"tls://hub:7422","hub_joined":true,"hub_says":"Error trying to connect as leafnode: refused"}}`},
		"not joined":      {info: `{"bus":{"hub":"tls://hub:7422","hub_says":"Error trying to connect as leafnode: refused"}}`, want: []string{"bus.hub_not_joined"}, fix: "tls://hub:7422"},
		"full":            {info: `{"bus":{"problem":"the bus stores nothing","stored":99,"max_store":100}}`, want: []string{"bus.full"}, fix: "bus.max_store_mb"},
		"no disk":         {info: `{"bus":{"problem":"the bus stores nothing","stored":10,"max_store":100}}`, want: []string{"bus.full"}, fix: "free room"},
		"away":            {info: `{"bus":{"away":"nats: no servers"}}`, want: []string{"bus.away"}, fix: "nats://bus:4222"},
		"several at once": {info: `{"bus":{"away":"x","problem":"y","hub":"tls://hub:7422"}}`, want: []string{"bus.away", "bus.full", "bus.hub_not_joined"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &patient{view: &View{State: daemon.State{Bus: &daemon.BusState{URL: "nats://bus:4222"}}, Info: []byte(c.info)}}
			r := busWorks(context.Background(), p)
			var got []string
			for _, f := range r.findings {
				got = append(got, f.ID)
				if f.Fix == "" || c.fix != "" && !strings.Contains(f.Fix, c.fix) {
					t.Errorf("it is mended by %q", f.Fix)
				}
			}
			if !slices.Equal(got, c.want) || r.skip {
				t.Errorf("found was %v: %+v", got, r)
			}
		})
	}
	for name, v := range map[string]*View{"no daemon": nil, "no answer": {}, "an older one": {Info: []byte(`{"state":{}}`)}, "nonsense": {Info: []byte(`[`)}} {
		if r := busWorks(context.Background(), &patient{view: v}); !r.skip || len(r.findings) > 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
