"""MCP servers seen from outside: one probe, and a watch over many.

Its files:

- `canaries`: the canary calls of a probe: which may be made, and what their outcomes mean
- `codes`: the codes of a probe: each failure that it tells apart, with an exit status and what to do
- `history`: what a watch keeps of one target: its last report, and its history by minute, hour and day
- `network`: the steps before MCP: the name, the connection, TLS, and what the server says about signing in
- `pages`: what a watch shows: a status page, JSON, a badge, and metrics for Prometheus
- `probe`: one probe: a pass over all that a client needs of a server, with one deadline for all
- `report`: what one probe found, also as JUnit
- `rules`: what the states of a watch's targets say is wrong
- `watch`: probes many targets on schedules, gently, and reports what is wrong as incidents
"""

from callyard.probe.codes import PROBE_CODES, ProbeCode, ProbeCodeName
from callyard.probe.probe import Target, probe
from callyard.probe.report import Failure, Report, Step, to_junit

__all__ = ["PROBE_CODES", "Failure", "ProbeCode", "ProbeCodeName", "Report", "Step", "Target", "probe", "to_junit"]
