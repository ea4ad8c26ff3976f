# An MCP server that is as bad as its first argument says, and otherwise a plain one.
import json, os, subprocess, sys, time

mode = sys.argv[1]
out = sys.stdout.buffer


def say(m):
    out.write(json.dumps(dict(m, jsonrpc="2.0")).encode() + b"\n")
    out.flush()


def tool(name, **more):
    return dict({"name": name, "description": "does " + name, "inputSchema": {"type": "object"}}, **more)


if mode == "silent":
    print("still thinking", file=sys.stderr, flush=True)
    for line in sys.stdin:
        pass
    sys.exit()
if mode == "flood":
    while True:
        out.write(b"\x1b]0;owned\x07 no message at all\n" * 10000)
if mode == "errors":
    for i in range(5000):
        print("complaint", i, file=sys.stderr)
if mode == "endless":
    while True:
        out.write(b"x" * 65536)
if mode == "binary":
    out.write(bytes(range(256)) * 4 + b"\n\x1b[2Jadded 3 packages\n42\n[]\n{}\n\n")
if mode == "notices":
    for _ in range(50000):
        out.write(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n')
if mode == "once":
    print("I was here", file=sys.stderr, flush=True)
    if os.path.exists("/tmp/once"):
        sys.exit(3)
    open("/tmp/once", "w").close()
if mode == "daemon":
    subprocess.Popen(["sleep", "7654321"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
if mode == "stubborn":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

tools = [tool(n) for n in ("die", "wait", "cancelled", "large", "answers", "grow", "count")]
if mode == "tools":
    tools = [tool("t%d" % i) for i in range(200)] + []
    tools[1]["inputSchema"] = {"type": "object", "description": "s" * 70000}
    tools[2]["inputSchema"] = []
    tools[3]["name"] = "n" * 300
    tools[4]["description"] = "d" * 100000
    tools[5]["name"] = "white space"
    tools[6]["name"] = "white_space"
    tools[7]["name"] = "long" * 30
    tools[8]["inputSchema"] = {"type": "array"}
    tools[9]["inputSchema"] = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    tools[10]["inputSchema"] = {"properties": {"a": {"type": "string"}}}
waiting, cancelled, answers, calls = [], 0, [], 0
if mode == "asks":
    for i, method in enumerate(("ping", "roots/list", "sampling/createMessage", "elicitation/create")):
        say({"id": "q%d" % i, "method": method, "params": {}})


def reply(id, text):
    say({"id": id, "result": {"content": [{"type": "text", "text": text}]}})


for line in sys.stdin:
    m = json.loads(line)
    method, id = m.get("method"), m.get("id")
    if method is None:
        answers.append("%s:%s" % (id, m["error"]["code"] if "error" in m else "ok"))
    elif method == "initialize" and mode == "stranger":
        print("I speak another language", file=sys.stderr, flush=True)
        say({"id": id, "error": {"code": -32000, "message": "who are you"}})
    elif method == "initialize":
        say({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "bad\x1b[31m", "version": "1"}}})
    elif method == "tools/list":
        result = {"tools": tools}
        if mode == "pages":
            result = {"tools": [tool("p" + str((m.get("params") or {}).get("cursor", "")))], "nextCursor": str(time.time())}
        say({"id": id, "result": result})
        if mode == "deaf":
            while True:
                time.sleep(3600)
    elif method == "notifications/cancelled":
        cancelled += 1
        for w in waiting:
            reply(w, "cancelled")
    elif method == "tools/call":
        name = m["params"]["name"]
        calls += 1
        if name == "die":
            print("something broke", file=sys.stderr, flush=True)
            os._exit(7)
        elif name == "cancelled":
            if cancelled:
                reply(id, "cancelled")
            else:
                waiting.append(id)
        elif name == "large":
            reply(id, "first" + "\u20ac" * 1000000 + "last")
        elif name == "answers":
            reply(id, " ".join(sorted(answers)))
        elif name == "grow":
            tools.append(tool("grown"))
            for _ in range(1000):
                say({"method": "notifications/tools/list_changed"})
            reply(id, "")
        elif name == "count":
            reply(id, str(calls))
    elif id is not None:
        say({"id": id, "error": {"code": -32601, "message": "no such method"}})
if mode == "stubborn":
    while True:
        time.sleep(3600)
