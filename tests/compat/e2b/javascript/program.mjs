// What a JavaScript program does with E2B's own packages; it prints what it saw as one line of JSON.
import { Sandbox } from '@e2b/code-interpreter'
import { Sandbox as Plain, SandboxNotFoundError, CommandExitError } from 'e2b'

const seen = {}
const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { user: 'a b&c' }, envs: { COLOUR: 'green' } })

const command = await sandbox.commands.run('echo "$COLOUR in $PWD"; echo oops >&2')
seen.command = [command.stdout, command.stderr, command.exitCode]
try {
  await sandbox.commands.run('exit 3')
} catch (error) {
  seen.failed = [error instanceof CommandExitError, error.exitCode]
}

await sandbox.files.write('note.txt', 'written by JavaScript')
seen.file = await sandbox.files.read('/home/user/note.txt')

seen.listing = (await sandbox.files.list('.')).filter((entry) => !entry.name.startsWith('.')).map((entry) => [entry.name, entry.type])

const background = await sandbox.commands.run('sleep 600', { background: true })
const pids = (await sandbox.commands.list()).map((each) => each.pid)
seen.background = [pids.includes(background.pid), await background.kill(), await sandbox.commands.kill(4_200_000)]

let printed = ''
const terminal = await sandbox.pty.create({ rows: 24, cols: 80, onData: (data) => (printed += new TextDecoder().decode(data)) })
await sandbox.pty.resize(terminal.pid, { rows: 24, cols: 101 })
await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
await terminal.wait()
seen.terminal = printed.includes('24 101')

const streamed = []
const run = await sandbox.runCode("x = open('note.txt').read()\nprint('out')\nx.upper()", { onStdout: (message) => streamed.push(message.line) })
seen.code = [run.text, run.logs.stdout.join(''), run.executionCount, streamed.join('')]
const raised = await sandbox.runCode('1/0')
seen.raised = [raised.error.name, raised.error.value, raised.error.traceback.includes('ZeroDivisionError')]
seen.javascript = (await sandbox.runCode('[1, 2].map((each) => each * 2)', { language: 'javascript' })).text
const context = await sandbox.createCodeContext({ language: 'bash', cwd: '/tmp' })
seen.context = [context.language, (await sandbox.runCode('pwd', { context })).logs.stdout.join('')]

const found = await Sandbox.list({ query: { metadata: { user: 'a b&c' } } }).nextItems()
seen.listed = found.map((each) => [each.sandboxId === sandbox.sandboxId, each.state, each.metadata])

await sandbox.pause()
seen.paused = [(await Sandbox.getInfo(sandbox.sandboxId)).state, await sandbox.isRunning()]
const again = await Sandbox.connect(sandbox.sandboxId)
seen.again = (await again.runCode('x')).text

seen.killed = [await again.kill(), await again.isRunning(), await Plain.kill(sandbox.sandboxId)]
try {
  await Plain.getInfo(sandbox.sandboxId)
} catch (error) {
  seen.gone = error instanceof SandboxNotFoundError
}
console.log(JSON.stringify(seen))
