package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/store"
)

// Streams of the control account.
const (
	WorkStream = "WORK" // work.CLIENT.ID: what is asked for, until it is over
	DeadStream = "DEAD" // dead.CLIENT.ID: what came to nothing
	RunsStream = "RUNS" // run.ID.…: what happens in runs
)

const (
	// doubles is within which the bus itself drops what is published twice.
	doubles = 10 * time.Minute
	// keepDead and keepRuns are how long the bus keeps what is over, and mostRunsBytes how much of that.
	keepDead      = 90 * 24 * time.Hour
	keepRuns      = 7 * 24 * time.Hour
	mostRunsBytes = 256 << 20
	mostDead      = 100_000
	// mostPending is how much of a client's work is delivered at once: all that there can be, and what was taken back and is
	// not acknowledged yet.
	mostPending = 2 * store.MostLiveWork
	// clustered is on how many servers of a cluster a stream is, and notClustered what one says that has none.
	clustered    = 3
	notClustered = jetstream.ErrorCode(10074)
	// longestMessage bounds what is published to the streams.
	longestMessage = 128 << 10
)

// streams are those that a dispatcher needs.
var streams = []jetstream.StreamConfig{
	{Name: WorkStream, Description: "what is asked for", Subjects: []string{"work.*.*"}, Retention: jetstream.WorkQueuePolicy, Duplicates: doubles, MaxMsgSize: longestMessage},
	{Name: DeadStream, Description: "what came to nothing", Subjects: []string{"dead.*.*"}, MaxAge: keepDead, MaxMsgs: mostDead, Duplicates: doubles, MaxMsgSize: longestMessage},
	{Name: RunsStream, Description: "what happens in runs", Subjects: []string{"run.*.>"}, MaxAge: keepRuns, MaxBytes: mostRunsBytes, Duplicates: doubles, MaxMsgSize: longestMessage},
}

func workSubject(w store.Work) string { return "work." + w.Client + "." + w.ID }

// letter is a message on the bus about work: never what was said.
type letter struct {
	Work    string `json:"work"`
	Session string `json:"session"`
	Agent   string `json:"agent"`
	// Of a dead one.
	Reason string `json:"reason,omitempty"`
	Tries  int    `json:"tries,omitempty"`
	RunID  string `json:"run_id,omitempty"`
}

func letterOf(w store.Work) letter {
	return letter{Work: w.ID, Session: w.SessionID, Agent: w.AgentID}
}

// begin sees to it that the streams are there, and that what the record says was published is still on the bus: a bus may
// be another one than before, or have lost its disk.
func (d *Dispatcher) begin(ctx context.Context) error {
	for _, c := range streams {
		if err := d.stream(ctx, c); err != nil {
			return fmt.Errorf("the stream %s: %w", c.Name, err)
		}
	}
	stream, err := d.js.Stream(ctx, WorkStream)
	if err != nil {
		return err
	}
	live, err := d.o.Store.ListWork(ctx, store.WorkFilter{Live: true})
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("work.>"))
	if err != nil {
		return err
	}
	for _, w := range live {
		if _, ok := info.State.Subjects[workSubject(w)]; !ok && w.Published != nil {
			// Without an id, since the bus may still remember that it had it.
			if err := d.post(ctx, workSubject(w), letterOf(w)); err != nil {
				return err
			}
		}
	}
	return nil
}

// stream sees to it that a stream is there. In a cluster it outlives any one server.
func (d *Dispatcher) stream(ctx context.Context, c jetstream.StreamConfig) error {
	if d.o.Conn.ConnectedClusterName() != "" {
		c.Replicas = clustered
		_, err := d.js.CreateOrUpdateStream(ctx, c)
		var told *jetstream.APIError
		if !errors.As(err, &told) || told.ErrorCode != notClustered {
			return err
		}
		c.Replicas = 1 // it is a cluster whose servers keep streams for themselves
	}
	_, err := d.js.CreateOrUpdateStream(ctx, c)
	return err
}

func (d *Dispatcher) post(ctx context.Context, subject string, l letter, opts ...jetstream.PublishOpt) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if _, err := d.js.Publish(ctx, subject, b, opts...); err != nil {
		return fmt.Errorf("publishing to %s: %w", subject, err)
	}
	return nil
}

// publish puts on the bus what is not there yet.
func (d *Dispatcher) publish(ctx context.Context) error {
	for {
		found, err := d.o.Store.ListWork(ctx, store.WorkFilter{Unpublished: true, Limit: mostPublished})
		if err != nil || len(found) == 0 {
			return err
		}
		var acks []jetstream.PubAckFuture
		for i := len(found) - 1; i >= 0; i-- { // the oldest first
			w := found[i]
			b, err := json.Marshal(letterOf(w))
			if err != nil {
				return err
			}
			ack, err := d.js.PublishAsync(workSubject(w), b, jetstream.WithMsgID(w.ID))
			if err != nil {
				return fmt.Errorf("publishing work: %w", err)
			}
			acks = append(acks, ack)
		}
		var ids []string
		for i, ack := range acks {
			select {
			case <-ack.Ok():
				ids = append(ids, found[len(found)-1-i].ID)
			case err := <-ack.Err():
				return fmt.Errorf("publishing work: %w", err)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := d.o.Store.PublishedWork(ctx, ids); err != nil {
			return err
		}
		d.tellNews(ctx, found)
		if len(found) < mostPublished {
			return nil
		}
	}
}

// tellNews tells runs that more was said in their sessions. That is a courtesy: the message is worked on in its turn.
func (d *Dispatcher) tellNews(ctx context.Context, said []store.Work) {
	if d.o.News == nil {
		return
	}
	for _, w := range said {
		running, err := d.o.Store.ListWork(ctx, store.WorkFilter{Live: true, Status: store.WorkRunning, SessionID: w.SessionID})
		for _, r := range running {
			err = errors.Join(err, d.o.News(ctx, r, w))
		}
		if err != nil {
			d.o.Log.Debug("a run was not told that more was said", "work", w.ID, "error", err.Error())
		}
	}
}

// bury publishes a dead letter. It may be done twice for one; the bus drops the second.
func (d *Dispatcher) bury(ctx context.Context, w store.Work, reason string) error {
	l := letterOf(w)
	l.Reason, l.Tries, l.RunID = reason, w.Tries+1, w.RunID
	return d.post(ctx, "dead."+w.Client+"."+w.ID, l, jetstream.WithMsgID("dead-"+w.ID))
}

// consume takes deliveries of every client.
func (d *Dispatcher) consume(ctx context.Context) error {
	all, err := d.o.Store.ListClients(ctx, true)
	if err != nil {
		return err
	}
	for _, c := range all {
		if taking, ok := d.consumers[c.Name]; ok {
			select {
			case <-taking.Closed(): // the bus has lost it
			default:
				continue
			}
		}
		// What was delivered to the dispatcher before, which is gone, is delivered anew at once.
		name := "client-" + c.Name
		if err := d.js.DeleteConsumer(ctx, WorkStream, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("the queue of client %s: %w", c.Name, err)
		}
		consumer, err := d.js.CreateConsumer(ctx, WorkStream, jetstream.ConsumerConfig{
			Durable: name, FilterSubject: "work." + c.Name + ".*", AckPolicy: jetstream.AckExplicitPolicy, AckWait: d.o.ackWait,
			MaxDeliver: -1, MaxAckPending: mostPending,
		})
		if err != nil {
			return fmt.Errorf("the queue of client %s: %w", c.Name, err)
		}
		taking, err := consumer.Consume(func(m jetstream.Msg) {
			select {
			case d.delivered <- m:
			case <-ctx.Done():
			}
		}, jetstream.PullMaxMessages(64), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			// It goes on by itself, and what is missing is delivered again.
			d.o.Log.Warn("deliveries of the bus pause", "client", c.Name, "error", err.Error())
		}))
		if err != nil {
			return fmt.Errorf("the queue of client %s: %w", c.Name, err)
		}
		d.consumers[c.Name] = taking
	}
	return nil
}

func (d *Dispatcher) stopConsuming() {
	for _, c := range d.consumers {
		c.Stop()
		<-c.Closed()
	}
}

// take holds what was delivered until it is over.
func (d *Dispatcher) take(ctx context.Context, m jetstream.Msg) {
	parts := strings.Split(m.Subject(), ".")
	w, err := d.o.Store.Work(ctx, parts[len(parts)-1])
	switch {
	case errors.Is(err, store.ErrNotFound):
		// Nobody asked for it, or who did is forgotten with its record.
		d.o.Log.Warn("work on the bus that is not in the record is dropped", "subject", m.Subject())
		d.did(m.Term())
	case err != nil:
		d.did(m.Nak())
	case w.Status.Final():
		d.did(m.Ack())
	default:
		d.held[w.ID] = m // a later delivery is the one to be acknowledged
		if d.o.taken != nil {
			d.o.taken(w.ID)
		}
	}
}

// did tells of an acknowledgement that did not reach the bus. It delivers again.
func (d *Dispatcher) did(err error) {
	if err != nil {
		d.o.Log.Debug("an acknowledgement did not reach the bus", "error", err.Error())
	}
}

// letGo acknowledges work that is over.
func (d *Dispatcher) letGo(id string) {
	if m, ok := d.held[id]; ok {
		d.did(m.Ack())
		delete(d.held, id)
	}
}

// beat says of all that is held that it still is, and lets go of what others ended.
func (d *Dispatcher) beat() {
	for id, m := range d.held {
		w, err := d.o.Store.Work(context.Background(), id)
		if err == nil && w.Status.Final() {
			d.letGo(id)
			continue
		}
		d.did(m.InProgress())
	}
}
