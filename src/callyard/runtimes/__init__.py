"""Runtimes: where programs written by a model run, within limits.

One protocol, several backends: plain processes for development, bubblewrap, containers and WebAssembly.

Its files:

- `bubblewrap`: namespaces, two stages of seccomp, process limits, and a zygote that forks guests
- `container`: guests in containers of docker or podman, started ahead in a warm pool
- `guest`: runs one program after another inside a sandbox and talks to the host in frames
- `guest_runtime`: the runtime over guests, one for each run or session, and the backend `subprocess`: a plain process
  for `dev`
- `host`: the host's side of a guest: frames over a socket, calls under back-pressure, limits of time, output and
  calls
- `library`: the standard library as sandboxes see it, without paths of this host
- `process`: how they are started and ended, the interpreter that they run, and what killed servers left
- `runtime`: settings, limits, calls, results and failures
- `seccomp`: which system calls a sandboxed process may make, as BPF made in plain Python
- `selection`: the selection of a runtime: the first backend that is installed and stops the canary attacks
- `wasm`: CPython for WASI under wasmtime, in a worker process
"""

__all__: list[str] = []
