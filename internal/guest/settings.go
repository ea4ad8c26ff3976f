package guest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// settings is what /init sets.
type settings struct {
	mu      sync.RWMutex
	token   string
	user    string
	workdir string
	envs    map[string]string
	at      time.Time // of the newest request that was taken
}

func (s *settings) accessToken() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.token
}

// defaultUser is who acts when a call names nobody.
func (s *settings) defaultUser() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.user != "" {
		return s.user
	}
	return "root"
}

func (s *settings) defaultWorkdir() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.workdir
}

func (s *settings) environment() map[string]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.envs)
}

// initRequest is the body of /init. What E2B's platform sends besides is not
// for a guest of Ravi and ignored.
type initRequest struct {
	EnvVars        map[string]string `json:"envVars"`
	AccessToken    *string           `json:"accessToken"`
	Timestamp      *time.Time        `json:"timestamp"`
	DefaultUser    *string           `json:"defaultUser"`
	DefaultWorkdir *string           `json:"defaultWorkdir"`
}

// serveInit sets the defaults of later calls. A request older than one that
// was taken already is a late double, and changes nothing.
func (s *Server) serveInit(w http.ResponseWriter, r *http.Request) {
	var req initRequest
	body := http.MaxBytesReader(w, r.Body, 4<<20)
	if err := json.NewDecoder(body).Decode(&req); err != nil && err != io.EOF {
		writeError(w, http.StatusBadRequest, fmt.Errorf("the body is not valid JSON: %w", err))
		return
	}
	for name, value := range req.EnvVars {
		if err := checkVariable(name, value); err != nil {
			writeError(w, http.StatusBadRequest, err)
			return
		}
	}
	if req.DefaultUser != nil && *req.DefaultUser != "" {
		if _, err := s.opts.accounts.lookup(*req.DefaultUser); err != nil {
			writeFailure(w, err)
			return
		}
	}
	set := &s.settings
	set.mu.Lock()
	defer set.mu.Unlock()
	if req.Timestamp != nil {
		if req.Timestamp.Before(set.at) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		set.at = *req.Timestamp
	}
	if req.EnvVars != nil {
		set.envs = req.EnvVars
	}
	if req.AccessToken != nil {
		set.token = *req.AccessToken
	}
	if req.DefaultUser != nil {
		set.user = *req.DefaultUser
	}
	if req.DefaultWorkdir != nil {
		set.workdir = *req.DefaultWorkdir
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) serveEnvs(w http.ResponseWriter, _ *http.Request) {
	envs := s.settings.environment()
	if envs == nil {
		envs = map[string]string{}
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, envs)
}

// defaultPath is used when the agent itself was given none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// roomName is the variable by which the processes of a sandbox without a
// process namespace are known. Whoever is born with it passes it on.
const roomName = "RAVI_SANDBOX"

// environment builds a process's variables: PATH of the agent, what belongs
// to the user, what /init set, what the call sets. Later ones win.
func (s *Server) environment(user account, envs map[string]string, raw map[string][]byte) ([]string, error) {
	vars := map[string]string{
		"PATH":        os.Getenv("PATH"),
		"HOME":        user.home,
		"USER":        user.name,
		"LOGNAME":     user.name,
		"E2B_SANDBOX": "true",
	}
	if vars["PATH"] == "" {
		vars["PATH"] = defaultPath
	}
	maps.Copy(vars, s.settings.environment())
	for name, value := range envs {
		if err := checkVariable(name, value); err != nil {
			return nil, err
		}
		vars[name] = value
	}
	for name, value := range raw {
		if err := checkVariable(name, string(value)); err != nil {
			return nil, err
		}
		vars[name] = string(value)
	}
	delete(vars, markName)
	if id := os.Getenv(roomName); id != "" {
		vars[roomName] = id
	}
	out := make([]string, 0, len(vars)+1)
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		out = append(out, name+"="+vars[name])
	}
	return out, nil
}

// checkVariable refuses what execve would cut or mix up. It names the
// variable, never its value, which may be a secret.
func checkVariable(name, value string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: a variable has an empty name", errBadArgument)
	case strings.ContainsAny(name, "=\x00") || !utf8.ValidString(name):
		return fmt.Errorf("%w: %q cannot be the name of a variable", errBadArgument, name)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("%w: the value of variable %q has a NUL byte", errBadArgument, name)
	}
	return nil
}

func envValue(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}
