package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"ravi/internal/guard"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 32 << 20

// Ask calls a command of the daemon at a socket as the operator, who needs no key there. path is GROUP/COMMAND.
func Ask(ctx context.Context, socket, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if in == nil {
		body = nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/api/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{Proxy: nil, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return guard.DialUnix(ctx, socket) }}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("the daemon does not answer: %w", err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the daemon's answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		var doc struct {
			Error Refusal `json:"error"`
		}
		if err := json.Unmarshal(b, &doc); err != nil || doc.Error.Message == "" {
			return fmt.Errorf("the daemon answered %s", res.Status)
		}
		doc.Error.Status = res.StatusCode
		return &doc.Error
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// Refusal is an error that the daemon answered.
type Refusal struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

func (r *Refusal) Error() string { return r.Message }
