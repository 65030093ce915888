"""The lines about a shared directory, in the order in which they are printed."""

from __future__ import annotations

from pfo_fs.doctor.lines import Line, Outcome

_OPERATOR = "ask the operator of the file system"

ANSWERS = Line(
    "answers",
    "whether each file operation ends, in a process of its own with a deadline",
    {
        "ok": Outcome(True, "Every operation ended in time."),
        "hung": Outcome(
            False,
            "The mount hangs: its server or the network does not answer. Training goes on with the schedule that it "
            "has, and returns to default clocks after 10 minutes. Lines about later checks are missing.",
            "look at the file server and the network; then run this command again",
        ),
        "missing": Outcome(
            False,
            "The directory is not there on this host. Ranks on this host would find no schedule.",
            "mount the file system here, or make the directory once (mkdir -m 700, or -m 2770 for a group)",
        ),
        "refused": Outcome(False, "pfo-fs cannot use this directory.", "mend what the line says"),
        "broken": Outcome(
            False,
            "The file system gives errors. Training goes on without new schedules while it does.",
            "mount it again, or look at the file server",
        ),
    },
)
FILE_SYSTEM = Line(
    "file system",
    "the kind of file system, from the kernel's table of mounts",
    {
        "network": Outcome(
            True, "Several hosts can share it. pfo-fs finds changes by reading again, every 1 s where a daemon runs."
        ),
        "local": Outcome(
            None,
            "Only processes of this host see it. That is enough for jobs on one host.",
            "for jobs on several hosts, use a directory on a network file system",
        ),
        "passing": Outcome(
            None,
            "It is in memory or belongs to a container, so only this host sees it, and its files are lost when "
            "the host restarts or the container ends.",
            "use a directory on a disk or on a network file system",
        ),
        "unknown": Outcome(
            None, "pfo-fs does not know this kind. It treats it as a network file system.", "run this with --peer"
        ),
    },
)
OPTIONS = Line(
    "mount options",
    "options of the mount that are known to do harm",
    {
        "ok": Outcome(True, "No option of this mount is known to do harm."),
        "read-only": Outcome(
            False, "No rank can join and no daemon can schedule: all of them write.", "mount it read-write (rw)"
        ),
        "local-locks": Outcome(
            None,
            "Locks hold on this host only. pfo-fs stays correct without locks; other programs may not.",
            "remove the option if other programs rely on locks",
        ),
        "soft": Outcome(
            None,
            "When the server is slow, operations fail instead of waiting. pfo-fs tries again later; "
            "other programs may lose what they write, checkpoints too.",
            "mount with `hard` if checkpoints are written there",
        ),
        "stale": Outcome(
            None,
            "This host may show old contents of files for a long time, so schedules may arrive late or never.",
            "remove the option; run this with --peer to see the delay",
        ),
        "long-caches": Outcome(
            None,
            "This host looks at the server rarely, so schedules arrive late by up to the time that the option names.",
            "lower the option's time to 60 s or less; run this with --peer to see the delay",
        ),
        "old-rename": Outcome(
            None,
            "This file system cannot replace a file in one step in every case.",
            "use another file system for the shared directory",
        ),
    },
)
RIGHTS = Line(
    "rights",
    "owner and mode of the directory and of the folders above it",
    {
        "private": Outcome(True, "Only its owner and root write there. Records of other users are not read."),
        "group": Outcome(
            True,
            "All members of the group can use it, and must trust each other: each could replace another's record.",
        ),
        "open": Outcome(
            False,
            "Any user of the host could plant a schedule, so pfo-fs refuses the directory.",
            "make a folder of your own in it (mkdir -m 700), or chmod o-w if it is yours; mode 2770 for a group",
        ),
        "no-setgid": Outcome(
            None,
            "The group may write, but new files get the group of their writer, so other members may not read them.",
            "chmod g+s on the directory and on the folders in it",
        ),
        "not-mine": Outcome(
            False,
            "This user cannot write there, so jobs of this user cannot join.",
            "run as a user who may write there",
        ),
        "above": Outcome(
            None,
            "A folder above lets other users rename or replace the directory.",
            "chmod o-w on that folder, or set its sticky bit (chmod +t)",
        ),
    },
)
FOLDERS = Line(
    "folders in it",
    "owner and mode of jobs/, archive/, leaders/, profiles/ and power-limit/",
    {
        "ok": Outcome(True, "They have the same rights as the directory."),
        "none": Outcome(None, "No daemon and no job has used this directory yet."),
        "narrow": Outcome(
            False,
            "The directory is for a group, but the group cannot write into a folder: jobs of other members fail there.",
            "chmod 2770 the folder, and chgrp it to the directory's group",
        ),
        "wide": Outcome(
            False, "Any user of the host could put files there.", "chmod o-w the folder, or chmod 2770 for a group"
        ),
    },
)
WRITE = Line(
    "write",
    "a file of 64 KiB is written, synchronised, closed and read again",
    {
        "ok": Outcome(True, "Records can be written, and errors are reported at the write."),
        "full": Outcome(
            False,
            "The file system is full. Old records stay whole; new ones are tried again until there is space.",
            "free some space",
        ),
        "quota": Outcome(
            False,
            "The quota of this user or group is used up. Old records stay whole; new ones are tried again.",
            "remove files, or ask for a larger quota",
        ),
        "read-only": Outcome(False, "No rank can join and no daemon can schedule.", "mount it read-write"),
        "denied": Outcome(False, "This user may not write there.", "run as a user who may, or change the rights"),
        "error": Outcome(False, "A write failed.", _OPERATOR),
        "changed": Outcome(False, "What was read is not what was written.", f"do not use it; {_OPERATOR}"),
    },
)
OWNER = Line(
    "owner of new files",
    "which user a new file belongs to",
    {
        "ok": Outcome(True, "Files belong to the user who writes them."),
        "squashed": Outcome(
            False,
            "The server gives this user's files to another user (root squash), and pfo-fs does not read files "
            "of users that it does not trust.",
            "run jobs and daemon as ordinary users, or share the directory with a group (chmod 2770)",
        ),
        "squashed-group": Outcome(
            None, "The server gives this user's files to another user. The group's rights are enough.", ""
        ),
    },
)
CREATE = Line(
    "exclusive create",
    "a name that exists is created again with O_EXCL and by mkdir",
    {
        "ok": Outcome(True, "A name is won by one process only."),
        "broken": Outcome(
            False, "Two processes can own one name: two ranks or two daemons could be taken for one.", _OPERATOR
        ),
    },
)
LINKS = Line(
    "hard links",
    "a second name is made for a file, and again for a name that exists",
    {
        "ok": Outcome(True, "Claims appear with their whole content at once."),
        "none": Outcome(None, "No hard links here: pfo-fs claims names by renaming folders, which takes longer."),
        "broken": Outcome(False, "A link replaced a file that existed: two processes can own one name.", _OPERATOR),
    },
)
RENAME = Line(
    "replace by rename",
    "a file is replaced many times while it is read",
    {
        "ok": Outcome(True, "A reader sees the old or the new content, never a part."),
        "retried": Outcome(None, "Some reads failed for a moment and worked when repeated, as pfo-fs does."),
        "broken": Outcome(
            False,
            "Readers see missing or incomplete files for longer than pfo-fs repeats a read, so records are not read.",
            _OPERATOR,
        ),
    },
)
LOCKS = Line(
    "locks on this host",
    "flock and fcntl locks are requested twice",
    {
        "ok": Outcome(True, "A second process of this host does not get a lock that is held."),
        "none": Outcome(
            None, "There are no locks. pfo-fs stays correct without them; other programs may refuse to work."
        ),
        "void": Outcome(
            None, "Locks are granted twice. pfo-fs stays correct without them; other programs may lose data."
        ),
    },
)
SPACE = Line(
    "space",
    "free bytes and free inodes for this user",
    {
        "ok": Outcome(True, "Enough for many jobs."),
        "low": Outcome(None, "It may be used up during a job.", "remove old jobs from archive/, or free some space"),
        "none": Outcome(False, "Nothing can be written. Old records stay whole; training goes on.", "free some space"),
    },
)
EVENTS = Line(
    "events",
    "whether changes wake the daemon before its next poll",
    {
        "ok": Outcome(True, "The daemon notices a change of this host's processes at once."),
        "polling": Outcome(
            True, "Changes of other hosts make no events here, so pfo-fs polls and loses nothing by it."
        ),
        "none": Outcome(
            None,
            "No events can be had, so the daemon polls every 0.25 s.",
            "raise fs.inotify.max_user_instances and max_user_watches",
        ),
    },
)
SERVER_CLOCK = Line(
    "clock of the file server",
    "the time of a new file against this host's clock",
    {
        "ok": Outcome(True, "Times of files can be compared with this host's clock."),
        "off": Outcome(
            None,
            "Dates of files mislead people. pfo-fs never subtracts times of different clocks.",
            "let both follow one time service (chrony, ntpd)",
        ),
    },
)
PEERS = Line(
    "other hosts",
    "with --peer N, N hosts that run this command find each other in the directory",
    {
        "found": Outcome(True, "All hosts see the same directory."),
        "not-asked": Outcome(
            None,
            "What other hosts see was not tested.",
            "run `pfo-fs doctor DIR --peer 2` on two hosts at the same time",
        ),
        "missing": Outcome(
            False,
            "Not all hosts were found: another host does not see this directory, or did not run the command in time.",
            "look at the lines of the other hosts; on all of them, findmnt DIR must name the same server",
        ),
        "too-many": Outcome(False, "More hosts run the command in this directory than --peer says.", "try again later"),
        "lost": Outcome(
            False,
            "A host stopped answering during the tests: its command ended, or its mount hangs.",
            "look at the lines of that host",
        ),
    },
)
PEER_CREATE = Line(
    "claims between hosts",
    "all hosts create the same names at once, by O_EXCL and by link",
    {
        "ok": Outcome(True, "Each name was won by one host."),
        "broken": Outcome(False, "Several hosts own one name: two daemons could both lead one job.", _OPERATOR),
        "error": Outcome(False, "Names could not be created.", "look at the lines above"),
    },
)
PEER_RENAME = Line(
    "replace between hosts",
    "one host replaces a file, the others read it",
    {
        "ok": Outcome(True, "Readers on other hosts see the old or the new content, never a part."),
        "retried": Outcome(
            None, "Some reads failed for a moment and worked when repeated, as pfo-fs does. Usual on network mounts."
        ),
        "broken": Outcome(
            False, "Some reads failed four times in a row, so records of other hosts are not read in time.", _OPERATOR
        ),
    },
)
PEER_LOCKS = Line(
    "locks between hosts",
    "one host holds a lock, the others request it, then it is released",
    {
        "ok": Outcome(True, "A lock that one host holds is refused to the others."),
        "local": Outcome(
            None,
            "Each host has locks of its own. pfo-fs stays correct; other programs may lose data.",
            "mount so that locks are shared (NFS without nolock and local_lock, Lustre with flock)",
        ),
        "none": Outcome(None, "There are no locks, or they are not released. pfo-fs stays correct without them."),
    },
)
PEER_DELAY = Line(
    "change seen by other hosts",
    "half the time of a round trip, for a replaced file and for a new name",
    {
        "ok": Outcome(True, "New schedules and results arrive within seconds."),
        "slow": Outcome(
            None,
            "New schedules and results arrive late by this time. Nothing breaks.",
            "mount with shorter caches (NFS: actimeo=3; GlusterFS: entry-timeout=1, attribute-timeout=1)",
        ),
        "broken": Outcome(
            False,
            "Changes of another host were not seen in time: schedules would not arrive.",
            "mount with shorter caches, or look for options such as nocto or cache=loose",
        ),
    },
)
PEER_EVENTS = Line(
    "events between hosts",
    "whether a change by another host makes a file-system event here",
    {
        "cross": Outcome(True, "Events cross; pfo-fs polls all the same."),
        "none": Outcome(True, "No event, as usual on network file systems: pfo-fs polls and loses nothing by it."),
    },
)
PEER_CLOCKS = Line(
    "clocks of the hosts",
    "the wall clocks of the hosts, compared through the directory",
    {
        "ok": Outcome(True, "Dates in names of jobs and in logs can be compared."),
        "off": Outcome(
            None,
            "Dates in names of jobs and in logs mislead people. pfo-fs never subtracts times of different hosts.",
            "let all hosts follow one time service (chrony, ntpd)",
        ),
    },
)

LINES = (
    ANSWERS, FILE_SYSTEM, OPTIONS, RIGHTS, FOLDERS, SPACE, WRITE, OWNER, CREATE, LINKS, RENAME, LOCKS, EVENTS,
    SERVER_CLOCK, PEERS, PEER_CREATE, PEER_RENAME, PEER_LOCKS, PEER_DELAY, PEER_EVENTS, PEER_CLOCKS,
)  # fmt: skip
