package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"ravi/internal/audit"
	"ravi/internal/broker"
	"ravi/internal/redact"
	"ravi/internal/store"
)

const (
	// mostRecord bounds a record of model calls, mostRecorded each text in it, and mostHeld the answers that are on their
	// way into it: an agent must not fill the host's disk, nor its memory.
	mostRecord   = 256 << 20
	mostRecorded = 8 << 20
	mostHeld     = 64 << 20
)

// modelRecord is ModelsFile: what the models were asked and what they answered, without the secrets that are known.
type modelRecord struct {
	redact *redact.Redactor

	mu    sync.Mutex
	file  *os.File // nil once it is closed
	room  int64
	held  int64 // bytes of answers that are not written yet
	calls int64
	full  bool
	left  struct{ texts, bytes int64 } // that are not in it, since it is full
	err   error                        // the first, of what nobody else is told
}

func newModelRecord(name string, r *redact.Redactor) (*modelRecord, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the record of model calls: %w", err)
	}
	return &modelRecord{redact: r, file: f, room: mostRecord}, nil
}

// recordedLine is a line of the file: a request, the answer to one, or what is not in it.
type recordedLine struct {
	Call     int64     `json:"call"`
	Time     time.Time `json:"time"`
	Provider string    `json:"provider,omitempty"`
	Endpoint string    `json:"endpoint,omitempty"`
	Model    string    `json:"model,omitempty"`
	Status   int       `json:"status,omitempty"`
	Request  *string   `json:"request,omitempty"`
	Answer   *string   `json:"answer,omitempty"`
	SHA256   string    `json:"sha256,omitempty"`   // of the text
	LeftOut  int64     `json:"left_out,omitempty"` // bytes behind the text
}

// recordedCall is a call of which the request is in the record. What is written to it is its answer.
type recordedCall struct {
	record  *modelRecord
	number  int64
	request string // the hash of what is kept; empty: nothing is
	answer  bounded
}

// keep writes a request down before it is sent.
func (m *modelRecord) keep(c broker.Call, body []byte) (io.Writer, error) {
	b := bounded{most: mostRecorded}
	w := m.redact.Writer(&b)
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	text := b.text()
	sum, err := m.write(recordedLine{Call: m.calls, Provider: c.Provider, Endpoint: c.Endpoint, Model: c.Model, Request: &text, LeftOut: b.over}, text)
	return &recordedCall{record: m, number: m.calls, request: sum}, err
}

// Write takes a part of the answer, as the agent gets it. It has no error.
func (k *recordedCall) Write(p []byte) (int, error) {
	m := k.record
	m.mu.Lock()
	defer m.mu.Unlock()
	before := k.answer.Len()
	k.answer.most = min(mostRecorded, before+int(mostHeld-m.held))
	_, _ = k.answer.Write(p) // it has no error
	m.held += int64(k.answer.Len() - before)
	return len(p), nil
}

// end writes down how a call was answered, and gives the hash of what is kept of that; none: nothing is.
func (k *recordedCall) end(status int) string {
	m := k.record
	text := k.answer.text() // the agent gets it without secrets
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held -= int64(k.answer.Len())
	sum, err := m.write(recordedLine{Call: k.number, Status: status, Answer: &text, LeftOut: k.answer.over}, text)
	if m.err == nil {
		m.err = err
	}
	return sum
}

// write adds a line with a text, and gives the text's hash; none if there is no room, which is said once and in the end.
func (m *modelRecord) write(line recordedLine, text string) (string, error) {
	sum := sha256.Sum256([]byte(text))
	line.Time, line.SHA256 = store.Now(), hex.EncodeToString(sum[:])
	b, err := encodeLine(line)
	if err != nil {
		return "", err
	}
	if m.full || int64(len(b)) > m.room {
		m.left.texts++
		m.left.bytes += int64(len(text)) + line.LeftOut
		if m.full {
			return "", nil
		}
		m.full = true
		return "", m.say(map[string]any{"full": fmt.Sprintf("there is no room for more: a record has at most %d MiB", mostRecord>>20)})
	}
	if err := m.put(b); err != nil {
		return "", err
	}
	m.room -= int64(len(b))
	return line.SHA256, nil
}

// say adds a line about the record itself, for which there is always room.
func (m *modelRecord) say(line any) error {
	b, err := encodeLine(line)
	if err != nil {
		return err
	}
	return m.put(b)
}

func (m *modelRecord) put(b []byte) error {
	if m.file == nil {
		return os.ErrClosed
	}
	if _, err := m.file.Write(b); err != nil {
		return fmt.Errorf("writing the record of model calls: %w", err)
	}
	return nil
}

// encodeLine is a line of JSON in which text is as readable as it can be.
func encodeLine(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// close ends the record. Its error is what could not be kept.
func (m *modelRecord) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left.texts > 0 {
		m.err = errors.Join(m.err, m.say(map[string]any{"missing": map[string]int64{"texts": m.left.texts, "bytes": m.left.bytes}}))
	}
	err := errors.Join(m.err, m.file.Close())
	m.file = nil
	return err
}

// bounded keeps the beginning of what is written to it, and counts the rest.
type bounded struct {
	bytes.Buffer
	most int
	over int64
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), max(0, b.most-b.Len()))
	b.over += int64(len(p) - n)
	b.Buffer.Write(p[:n])
	return len(p), nil
}

// text is what is kept, as a text: without a character that was cut in two.
func (b *bounded) text() string { return strings.ToValidUTF8(b.String(), "\uFFFD") }

// recordModels keeps the content of the run's model calls from now on.
func (s *state) recordModels() error {
	var err error
	if s.models.record, err = newModelRecord(s.dir.path(ModelsFile), s.Redact); err != nil {
		return err
	}
	s.models.closers = append(s.models.closers, s.models.record.close)
	s.note("what the models are asked and answer is kept in %s", s.dir.path(ModelsFile))
	return nil
}

// recordAnswer writes down what a call was answered, if it is kept, and the hash of that in the audit.
func (s *state) recordAnswer(m *modeled, w *audit.Writer, c broker.Call) {
	k, ok := c.Content.(*recordedCall)
	if !ok {
		return
	}
	input := map[string]any{"call": k.number, "status": c.Status}
	if sum := k.end(c.Status); sum != "" {
		input["answer_sha256"] = sum
	}
	row, err := audit.Call{
		Caller: m.id, Action: audit.ModelAnswer, Object: c.Provider + "/" + c.Model, Decision: store.Allowed,
		RunID: s.task.ID, SandboxID: s.task.Sandbox, Input: input,
	}.Record(s.Redact.String)
	if err == nil {
		err = w.Append(context.Background(), row)
	}
	if err != nil {
		k.record.fail(fmt.Errorf("the audit of what a model answered: %w", err))
	}
}

func (m *modelRecord) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
}
