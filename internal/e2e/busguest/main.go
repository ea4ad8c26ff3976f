// Command busguest is a program in a sandbox that speaks on the bus, for tests: it does what a good one would, and what one
// would that was led astray. Each line that it prints is what came of one thing.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// patience is how long it waits for the bus, which may be slow and is never gone.
const patience = 4 * time.Minute

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func run(what string, args []string) error {
	prefix := os.Getenv("RAVI_BUS_PREFIX")
	nc, err := nats.Connect(os.Getenv("RAVI_BUS_URL"), nats.UserCredentials(os.Getenv("RAVI_BUS_CREDS")), nats.MaxReconnects(5), nats.ReconnectWait(100*time.Millisecond), nats.Timeout(patience))
	if err != nil {
		return err
	}
	defer nc.Close()
	// The server answers a ping after all that was sent before, so a refusal is here then; it names the subject.
	try := func(name, subject string, f func() error) {
		err := f()
		if ferr := nc.FlushTimeout(patience); ferr != nil {
			fmt.Println(name+":", "cut", ferr)
			return
		}
		last := nc.LastError()
		switch {
		case err != nil:
			fmt.Println(name+":", "error", err)
		case last != nil && strings.Contains(strings.ToLower(last.Error()), "permissions violation") && strings.Contains(last.Error(), `"`+subject+`"`):
			fmt.Println(name+":", "refused")
		default:
			fmt.Println(name+":", "taken")
		}
	}
	publish := func(name, subject, data string) {
		try(name, subject, func() error { return nc.Publish(subject, []byte(data)) })
	}
	switch what {
	case "say":
		for _, text := range args {
			if err := nc.Publish(prefix+".up.progress", []byte(text)); err != nil {
				return err
			}
		}
		return nc.FlushTimeout(patience)
	case "hear":
		sub, err := nc.SubscribeSync(prefix + ".down.>")
		if err != nil {
			return err
		}
		if err := nc.FlushTimeout(patience); err != nil { // what is told from now on is heard
			return err
		}
		fmt.Println("listening")
		m, err := sub.NextMsg(patience)
		if err != nil {
			return err
		}
		fmt.Println("heard", strings.TrimPrefix(m.Subject, prefix+".down."), string(m.Data))
		return nil
	case "attack":
		other := args[0]
		publish("own", prefix+".up.x", `{"n":1}`)
		publish("another's up", "run."+other+".up.x", "forged")
		publish("another's event", "run."+other+".event", "forged")
		publish("another's down", "run."+other+".down.x", "forged")
		publish("own down", prefix+".down.x", "forged")
		publish("work", "work.default.wrkforged", "{}")
		publish("jetstream", "$JS.API.STREAM.LIST", "")
		publish("system", "$SYS.REQ.SERVER.PING", "")
		publish("a runner", "runner.far.status", `{"capacity":{"sandboxes":9}}`)
		publish("a tunnel", "tunnel.far."+other+".0.down", "x")
		for _, subject := range []string{">", "run.>", "run." + other + ".>", "_INBOX.>", "_INBOX_*.>", "work.>", "$SYS.>", "$JS.>"} {
			try("hear "+subject, subject, func() error { _, err := nc.SubscribeSync(subject); return err })
		}
		try("reply and headers", prefix+".up.sneaky", func() error {
			m := nats.NewMsg(prefix + ".up.sneaky")
			m.Reply = "run." + other + ".event"
			m.Header.Set("Nats-Msg-Id", "the-same")
			m.Header.Set("Nats-Rollup", "all")
			m.Header.Set("Nats-Expected-Last-Sequence", "0")
			m.Data = []byte(`{"sneaky":true}`)
			return nc.PublishMsg(m)
		})
		try("too large", prefix+".up.big", func() error { return nc.Publish(prefix+".up.big", make([]byte, 1<<20)) })
		return nil
	case "flood":
		// 100 MB in messages that each are allowed.
		data := []byte(`"` + strings.Repeat("x", 30<<10) + `"`)
		for n := 0; n < 100<<20; n += len(data) {
			if err := nc.Publish(prefix+".up.flood", data); err != nil {
				return err
			}
		}
		fmt.Println("flooded:", nc.FlushTimeout(patience))
		return nil
	}
	return fmt.Errorf("%q is nothing that I do", what)
}
