package broker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"ravi/internal/broker/check"
	"ravi/internal/guard"
)

// call is one request of the agent.
type call struct {
	Call
	b       *Broker
	w       http.ResponseWriter
	r       *http.Request
	p       *provider // nil if there is none of that name
	dialect Dialect   // in which the agent is answered
	to      route
	began   time.Time

	hideUsage bool
	ctx       context.Context // of what is sent
	cancel    context.CancelCauseFunc
	wrote     bool // the agent has got something
	tally     tally
	size      int   // of the body that was sent
	estimate  Usage // that the call is thought to need
	used      bool  // the provider has worked for it
	settled   bool
}

// largeBody is from where on bodies are read one after the other: what a parser makes of one is many times as large.
const largeBody = 1 << 20

// serve sends a call, and hands on the answer.
func (c *call) serve() {
	body, free, refused := c.body(c.r.Context())
	if refused != nil {
		c.refuse(refused)
		return
	}
	defer free()
	request, refused := c.check(body)
	if refused != nil {
		c.refuse(refused)
		return
	}
	body = nil
	lifted, err := guard.Lift(c.w, c.r)
	if err != nil {
		c.refuse(&refusal{status: http.StatusInternalServerError, message: "Ravi cannot serve model calls here", failed: err.Error()})
		return
	}
	c.size = len(request.Body)
	if !c.to.endpoint.counts() {
		c.estimate.Input = estimate(c.size)
		c.estimate.price(c.p.Prices, c.Model)
		if c.b.lease.Limits.USD > 0 && !c.estimate.Priced {
			c.refuse(unpriced(c.p.Name, c.Model))
			return
		}
	}
	if refused := c.b.ledger.admit(c.p.Name, c.Model, c.estimate); refused != nil {
		c.refuse(refused)
		return
	}
	if err := c.keep(request.Body); err != nil {
		c.b.ledger.undo(c.estimate)
		c.refuse(&refusal{status: http.StatusServiceUnavailable, after: 5 * time.Second, failed: c.b.redactor.String(err.Error()),
			message: "Ravi could not keep the content of this call, as it was told to, and so did not send it"})
		return
	}
	if err := c.b.begin(lifted, c.Call); err != nil {
		c.b.ledger.undo(c.estimate)
		notWritten().write(c.w, c.dialect)
		return
	}
	defer c.finish()
	c.ctx, c.cancel = context.WithCancelCause(lifted)
	defer c.cancel(nil)
	defer context.AfterFunc(c.b.over, func() { c.cancel(context.Cause(c.b.over)) })()
	c.tally.endpoint = c.to.endpoint

	out := &outgoing{data: request.Body, size: c.size}
	request.Body = nil
	if fault := c.exchange(out, free); fault != nil {
		c.fail(fault)
	}
}

// keep has the content of a call kept, where that is asked for.
func (c *call) keep(body []byte) error {
	if c.b.keep == nil {
		return nil
	}
	content, err := c.b.keep(c.Call, body)
	if err != nil {
		return err
	}
	c.Content, c.w = content, &copied{c.w, content}
	return nil
}

// copied is an answer that goes to a second place, as far as the agent takes it.
type copied struct {
	http.ResponseWriter
	to io.Writer
}

func (w *copied) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	_, _ = w.to.Write(p[:n]) // whoever keeps it tells
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *copied) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// check reads a body, and says whether it goes on.
func (c *call) check(body []byte) (check.Request, *refusal) {
	if len(body) > largeBody {
		if err := c.b.large.take(c.r.Context(), 1); err != nil {
			return check.Request{}, &refusal{status: http.StatusServiceUnavailable, after: time.Second, message: "too many large calls are under way"}
		}
		defer c.b.large.give(1)
	}
	request, refused := c.to.read(body, c.b.grants)
	if refused != nil {
		return request, refused
	}
	c.Model, c.Stream, c.hideUsage = request.Model, request.Stream, request.HideUsage
	if !allowed(c.p.Models, c.Model) {
		return request, &refusal{status: http.StatusForbidden, message: fmt.Sprintf("the model %s is not one that this run may use of %s", quoted(c.Model), c.p.Name)}
	}
	for _, id := range request.Previous {
		if !c.b.grants[check.Store] && !c.b.ids.has(c.p.Name+" "+id) {
			return request, &refusal{status: http.StatusForbidden, message: fmt.Sprintf("the response %s is not one that this run has made, so it cannot be gone on from; "+
				"the operator of Ravi can allow it by adding %q to models.allow in config.json", quoted(id), check.Store)}
		}
	}
	return request, nil
}

// exchange sends a body and hands on the answer. What went wrong is returned, and the agent has not been told yet.
func (c *call) exchange(out *outgoing, free func()) *refusal {
	watch := newWatch(c)
	defer watch.stop()
	res, fault := c.send(c.ctx, out)
	if fault != nil {
		// Who goes away before the answer begins has had the provider work all the same.
		c.used = c.ctx.Err() != nil && out.wasSent()
		return fault
	}
	out.let()
	free()
	res.Request = nil // it has the body
	defer res.Body.Close()
	watch.src = res.Body
	plainBody, err := plain(res, watch)
	if err != nil {
		return c.unreachable(c.ctx, err)
	}
	limited := &limited{src: plainBody, left: maxAnswer}
	if res.StatusCode != http.StatusOK {
		return c.handOnError(res, limited)
	}
	switch got := kind(res); {
	case c.Stream && got == "text/event-stream":
		c.used = true
		return c.stream(res, limited, watch)
	case !c.Stream && isJSON(got):
		c.used = true
		return c.whole(res, limited)
	case got == "":
		return c.broken("it does not say of what type its answer is")
	default:
		return c.broken("its answer is of the type " + quoted(got) + ", which was not asked for")
	}
}

// broken is an answer that is none.
func (c *call) broken(why string) *refusal {
	return &refusal{status: http.StatusBadGateway, message: fmt.Sprintf("the model provider %s gave a broken answer: %s", c.p.Name, c.b.redactor.String(why))}
}

// fail tells the agent that something went wrong: by a status as long as nothing was sent, then by an event.
func (c *call) fail(fault *refusal) {
	c.Failed = fault.message
	if fault.failed != "" {
		c.Failed = fault.failed
	}
	c.settle()
	switch {
	case fault.status == statusGone:
	case !c.wrote:
		c.Status = fault.status
		c.FirstByte = c.b.now().Sub(c.began)
		fault.write(c.w, c.dialect)
	default:
		// The agent that does not take it has gone.
		_, _ = c.w.Write(c.to.endpoint.event(fault.status, fault.message))
	}
}

// settle counts what was used. It comes before the end of the answer, so that who asks again at once finds it counted.
func (c *call) settle() {
	if c.settled {
		return
	}
	c.settled = true
	if c.used {
		c.Usage, c.Estimated = c.tally.sum(c.size)
		c.Usage.price(c.p.Prices, c.Model)
	}
	c.b.ledger.settle(c.estimate, c.Usage)
}

// finish tells how a call ended that was let begin.
func (c *call) finish() {
	c.settle()
	if c.Failed == "" {
		c.Failed = c.tally.failed
	}
	c.Took = c.b.now().Sub(c.began)
	c.b.end(c.Call)
}
