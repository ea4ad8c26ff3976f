// Run by smoke_test.go, with the SDK in E2B_SMOKE_MODULES and the guest on
// localhost:49983, where E2B_DEBUG makes the SDK look for it.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { after, before, test } from 'node:test'

const require = createRequire(process.env.E2B_SMOKE_MODULES + '/')
const { Sandbox, CommandExitError, FileNotFoundError, TimeoutError, FileType } = await import(
  pathToFileURL(require.resolve('e2b')).href
).then((m) => m.default ?? m)

let sandbox
before(async () => {
  sandbox = await Sandbox.create()
})
after(async () => {
  await sandbox.kill()
})

test('run: output, exit code, user, directory, variables', async () => {
  const ok = await sandbox.commands.run('echo out; echo err >&2; id -un; pwd; echo "$A"', { envs: { A: 'a b' } })
  assert.equal(ok.stdout, 'out\nuser\n/home/user\na b\n')
  assert.equal(ok.stderr, 'err\n')
  assert.equal(ok.exitCode, 0)
  await assert.rejects(sandbox.commands.run('echo no; exit 3'), (err) => {
    assert.ok(err instanceof CommandExitError)
    assert.equal(err.exitCode, 3)
    assert.equal(err.stdout, 'no\n')
    return true
  })
  const root = await sandbox.commands.run('id -u', { user: 'root', cwd: '/' })
  assert.equal(root.stdout, '0\n')
  await assert.rejects(sandbox.commands.run('true', { cwd: '/no/such/place' }), /does not exist/)
})

test('run: characters that chunks cut arrive whole', async () => {
  const all = await sandbox.commands.run(`python3 -c "import sys; sys.stdout.write('\u20ac' * 100000)"`)
  assert.equal(all.stdout, '€'.repeat(100000))
  const slow = await sandbox.commands.run(`for b in '\\342' '\\202' '\\254'; do printf "$b"; sleep 0.05; done`)
  assert.equal(slow.stdout, '€')
})

test('run: a timeout ends the command', async () => {
  await assert.rejects(
    sandbox.commands.run('echo $$ > /tmp/timed; exec sleep 1000', { timeoutMs: 700 }),
    (err) => err instanceof TimeoutError
  )
  // The SDK counts the time for itself, so the command may end a moment after it has given up.
  await sandbox.commands.run('while kill -0 $(cat /tmp/timed); do sleep 0.01; done')
})

test('background: list, input, connect, kill', async () => {
  const handle = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === handle.pid))
  const second = await sandbox.commands.connect(handle.pid)
  await sandbox.commands.sendStdin(handle.pid, 'hello\n')
  await sandbox.commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'hello\nend\n')
  assert.equal((await second.wait()).exitCode, 0)

  const sleeper = await sandbox.commands.run('sleep 1000', { background: true })
  assert.equal(await sleeper.kill(), true)
  await assert.rejects(sleeper.wait(), CommandExitError)
  assert.equal(await sandbox.commands.kill(sleeper.pid), false)
})

test('files: write, read, list, info, rename, exists, remove', async () => {
  const bytes = new Uint8Array(256).map((_, i) => i)
  await sandbox.files.write('smoke/bytes', new Blob([bytes]))
  assert.deepEqual(new Uint8Array(await sandbox.files.read('smoke/bytes', { format: 'bytes' })), bytes)
  await sandbox.files.write('smoke/empty', '')
  assert.equal(await sandbox.files.read('smoke/empty'), '')
  const names = ['with "quotes"', 'line\nend', 'ünïcode 日本', '--help']
  await sandbox.files.write(names.map((name) => ({ path: `/home/user/smoke/${name}`, data: name })))
  for (const name of names) assert.equal(await sandbox.files.read(`smoke/${name}`), name)
  const entries = await sandbox.files.list('smoke')
  assert.deepEqual(entries.map((e) => e.name).sort(), ['bytes', 'empty', ...names].sort())
  const info = await sandbox.files.getInfo('smoke/bytes')
  assert.equal(info.type, FileType.FILE)
  assert.equal(info.size, 256)
  assert.equal(info.owner, 'user')
  await sandbox.files.rename('smoke/bytes', 'smoke/renamed')
  assert.equal(await sandbox.files.exists('smoke/bytes'), false)
  assert.equal(await sandbox.files.exists('smoke/renamed'), true)
  assert.equal(await sandbox.files.makeDir('smoke'), false)
  await sandbox.files.remove('smoke')
  assert.equal(await sandbox.files.exists('smoke'), false)
  await assert.rejects(sandbox.files.read('smoke/renamed'), FileNotFoundError)
})

test('files: gzip and metadata', async () => {
  const text = 'zip me '.repeat(1000)
  const info = await sandbox.files.write('zipped', text, { gzip: true, metadata: { author: 'somebody' } })
  assert.deepEqual(info.metadata, { author: 'somebody' })
  assert.equal(await sandbox.files.read('zipped', { gzip: true }), text)
  assert.deepEqual((await sandbox.files.getInfo('zipped')).metadata, { author: 'somebody' })
  await sandbox.files.remove('zipped')
})

test('files: watch', async () => {
  await sandbox.files.makeDir('watched')
  let seen
  const change = new Promise((resolve) => (seen = resolve))
  const handle = await sandbox.files.watchDir('watched', (ev) => ev.type === 'write' && seen(ev.name), { recursive: true })
  await sandbox.files.write('watched/deep/file', 'x')
  await sandbox.commands.run('echo y >> watched/deep/file')
  assert.equal(await change, 'deep/file')
  await handle.stop()
  await sandbox.files.remove('watched')
})

test('pty: output, size, input, resize', async () => {
  let out = ''
  const decoder = new TextDecoder()
  const pty = await sandbox.pty.create({ cols: 90, rows: 30, onData: (d) => (out += decoder.decode(d)) })
  await sandbox.pty.resize(pty.pid, { cols: 101, rows: 33 })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit 4\n'))
  await assert.rejects(pty.wait(), (err) => err.exitCode === 4)
  assert.match(out, /33 101/)
})

test('the sandbox is running', async () => {
  assert.equal(await sandbox.isRunning(), true)
})
