"""Seccomp filters: which system calls a sandboxed process may make, as BPF made in plain Python.

The first stage refuses what changes the system; it covers the process that starts guests. The second stage allows only
the calls that an interpreter needs, and is installed before a program runs.
"""

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["is_supported", "launcher_filter", "program_filter"]

# Each entry is 'name:number on x86-64:number on aarch64'; a call that an architecture lacks has no number.
_ALLOWED: Final = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv2:327:286 pwritev2:328:287 open:2:
openat:257:56 openat2:437:437 close:3:57 close_range:436:436 stat:4: fstat:5:80 lstat:6: newfstatat:262:79
statx:332:291 statfs:137:43 fstatfs:138:44 lseek:8:62 mmap:9:222 mprotect:10:226 munmap:11:215 brk:12:214
mremap:25:216 madvise:28:233 membarrier:324:283 mlock:149:228 munlock:150:229 msync:26:227 mincore:27:232
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigsuspend:130:133
rt_sigtimedwait:128:137 sigaltstack:131:132 pause:34: restart_syscall:219:128 access:21: faccessat:269:48
faccessat2:439:439 poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create:213: epoll_create1:291:20
epoll_ctl:233:21 epoll_wait:232: epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284: eventfd2:290:19 pipe:22:
pipe2:293:59 dup:32:23 dup2:33: dup3:292:24 getpid:39:172 getppid:110:173 gettid:186:178 getuid:102:174
geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 getpgrp:111:
getpgid:121:155 getsid:124:156 futex:202:98 futex_waitv:449:449 clock_gettime:228:113 clock_getres:229:114
clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201: times:100:153 getitimer:36:102 setitimer:38:103
alarm:37: timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87 getrandom:318:278 getdents:78:
getdents64:217:61 readlink:89: readlinkat:267:78 getcwd:79:17 chdir:80:49 fchdir:81:50 uname:63:160 sched_yield:24:124
sched_getaffinity:204:123 getcpu:309:168 exit:60:93 exit_group:231:94 set_robust_list:273:99 get_robust_list:274:100
rseq:334:293 set_tid_address:218:96 getrlimit:97:163 getrusage:98:165 sysinfo:99:179 fadvise64:221:223 umask:95:166
sendfile:40:71 copy_file_range:326:285 splice:275:76 arch_prctl:158: getpriority:140:141 capget:125:90
"""
"""What an interpreter needs; all else fails with EPERM.

Memory files are left out, because no limit of a process counts them, and so is `flock`, which would lock files of the
host. So are timers with a signal of one's choice: SIGCONT would let a frozen guest go on.
"""
_FILE_CHANGES: Final = """
ftruncate:77:46 truncate:76:45 fsync:74:82 fdatasync:75:83 fallocate:285:47 unlink:87: unlinkat:263:35 mkdir:83:
mkdirat:258:34 rmdir:84: rename:82: renameat:264:38 renameat2:316:276 link:86: linkat:265:37 symlink:88:
symlinkat:266:36 chmod:90: fchmod:91:52 fchmodat:268:53 utimensat:280:88 utime:132:
"""
"""What programs need where they have a directory of their own."""
_REFUSED: Final = """
ptrace:101:117 syslog:103:116 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 swapon:167:224
swapoff:168:225 reboot:169:142 sethostname:170:161 setdomainname:171:162 iopl:172: ioperm:173: init_module:175:105
delete_module:176:106 finit_module:313:273 quotactl:179:60 quotactl_fd:443:443 acct:163:89 settimeofday:164:170
adjtimex:159:171 clock_settime:227:112 clock_adjtime:305:266 kexec_load:246:104 kexec_file_load:320:294
add_key:248:217 request_key:249:218 keyctl:250:219 unshare:272:97 setns:308:268 perf_event_open:298:241
name_to_handle_at:303: open_by_handle_at:304: process_vm_readv:310:270 process_vm_writev:311:271 kcmp:312:272
bpf:321:280 userfaultfd:323:282 move_pages:279:239 mbind:237:235 set_mempolicy:238:237 get_mempolicy:239:236
migrate_pages:256:238 personality:135:92 vhangup:153:58 io_uring_setup:425:425 io_uring_enter:426:426
io_uring_register:427:427 open_tree:428:428 move_mount:429:429 fsopen:430:430 fsconfig:431:431 fsmount:432:432
fspick:433:433 pidfd_getfd:438:438 mount_setattr:442:442 process_madvise:440:440 memfd_secret:447:447 socket:41:198
connect:42:203 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 mknod:133: mknodat:259:33 shmget:29:194
shmat:30:196 shmctl:31:195 semget:64:190 msgget:68:186 mq_open:240:180
"""
"""What changes the system, looks into other processes or opens a socket."""

_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_PRLIMIT: Final = (302, 261)
_FCNTL: Final = (72, 25)
_IOCTL: Final = (16, 29)
_FCNTL_COMMANDS: Final = (0, 1, 2, 3, 4, 1030, 1032)
"""Copies of a descriptor and its flags.

The owner and the signal of a descriptor are left out, because they send signals to other guests; leases and watches
hold up programs of the host; the size of a pipe is taken from what its user may have.
"""
_LOCK_COMMANDS: Final = (5, 6, 7, 36, 37, 38)
"""Locks of a part of a file; nothing limits their number, and they are in the memory of the kernel."""
_IOCTL_COMMANDS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""What a file object asks about a terminal, how much can be read, blocking or not, and closing on exec."""
_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32: Final = 0x40000000
"""Numbers from here on belong to a second ABI of x86-64, which would bypass the table."""
_CLONE_THREAD: Final = 0x00010000
_LOAD, _EQUALS, _HAS_BITS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in 'struct seccomp_data'. The lower half of an argument comes first: both architectures are little-endian."""


def is_supported() -> bool:
    """Return whether the filters know this processor."""
    return platform.machine() in _ARCHITECTURES


def launcher_filter() -> bytes:
    """Return the first stage: everything but what changes the system or opens a socket."""
    column, _ = _ARCHITECTURES[platform.machine()]
    refused = b"".join(_when(number, _error(errno.EPERM)) for number in _numbers(_REFUSED, column))
    return _prologue() + refused + _step(_RETURN, _ALLOW)


def program_filter(*, changes_files: bool) -> bytes:
    """Return the second stage: the calls of an interpreter, threads, and what concerns only the process itself."""
    column, _ = _ARCHITECTURES[platform.machine()]
    table = _ALLOWED + _FILE_CHANGES if changes_files else _ALLOWED
    fcntl = _FCNTL_COMMANDS + _LOCK_COMMANDS if changes_files else _FCNTL_COMMANDS
    refused = _step(_RETURN, _error(errno.EPERM))
    parts = (
        _prologue(),
        *(_step(_EQUALS, _CLONE[column], no=4), _step(_LOAD, _ARGUMENT), _step(_HAS_BITS, _CLONE_THREAD, no=1)),
        *(_step(_RETURN, _ALLOW), refused),
        _when_one_of(_PRLIMIT[column], _ARGUMENT, (0,)),  # the limits of the process itself
        _when_one_of(_FCNTL[column], _SECOND_ARGUMENT, fcntl),
        _when_one_of(_IOCTL[column], _SECOND_ARGUMENT, _IOCTL_COMMANDS),
        _when(_CLONE3[column], _error(errno.ENOSYS)),  # its flags are in memory; the C library falls back to 'clone'
        *(_when(number, _ALLOW) for number in _numbers(table, column)),
        refused,
    )
    return b"".join(parts)


def _prologue() -> bytes:
    """Kill a process that uses another ABI, and load the number of the call."""
    machine = platform.machine()
    _, architecture = _ARCHITECTURES[machine]
    start = _step(_LOAD, _ARCHITECTURE) + _step(_EQUALS, architecture, yes=1)
    start += _step(_RETURN, _KILL) + _step(_LOAD, _NUMBER)
    return start + (_step(_AT_LEAST, _X32, no=1) + _step(_RETURN, _KILL) if machine == "x86_64" else b"")


def _numbers(table: str, column: int) -> Iterator[int]:
    entries = (entry.split(":")[1:] for entry in table.split())
    return (int(numbers[column]) for numbers in entries if numbers[column])


def _when(number: int, action: int) -> bytes:
    return _step(_EQUALS, number, no=1) + _step(_RETURN, action)


def _when_one_of(number: int, argument: int, values: Sequence[int]) -> bytes:
    """Allow a call only with these values of one argument."""
    allowed = b"".join(_when(value, _ALLOW) for value in values)
    body = _step(_LOAD, argument) + allowed + _step(_RETURN, _error(errno.EPERM))
    return _step(_EQUALS, number, no=len(body) // 8) + body


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _error(number: int) -> int:
    return 0x00050000 | number
