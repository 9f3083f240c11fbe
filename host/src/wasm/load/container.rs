//! Reads how much memory the container's limits leave.
//!
//! A container's memory limit is the limit of a control group, and the groups above it count too. Since Kubernetes 1.28
//! the kernel ends all processes of a container that reaches its limit (`memory.oom.group`). So a compiler that reaches
//! it takes the host with it. Where only the compiler would end, the host bounds it just the same.
//!
//! ```text
//! /proc/self/cgroup      which group      0::/kubepods/pod1/c1        4:memory:/kubepods/pod1/c1
//! /proc/self/mountinfo   where it is      /sys/fs/cgroup (cgroup2)    /sys/fs/cgroup/memory (cgroup, memory)
//! there and above        what it says     memory.max, .high, .current memory.limit_in_bytes, .usage_in_bytes
//! ```

use std::{
    fs::File,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

/// Bytes of a file that are read. A machine with many mounts has several hundred kB of them.
const FILE: u64 = 1 << 20;

/// Version 1 writes "no limit" as the largest number of whole pages. Any value above this bound is one.
const UNLIMITED: u64 = 1 << 60;

/// A memory limit, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The limit in bytes.
    pub(crate) limit: u64,
    /// Unused bytes. Inactive cached files count as unused.
    pub(crate) left: u64,
}

/// Returns the limit that leaves least among this process's control groups, or `None` if there is no limit. `root` is
/// `/`.
pub(crate) fn room(root: &Path) -> Option<Room> {
    let groups = text(&root.join("proc/self/cgroup"))?;
    let mounts = text(&root.join("proc/self/mountinfo"))?;
    let all = groups.lines().filter_map(Group::parse).flat_map(|group| group.limits(root, &mounts));
    all.min_by_key(|room| room.left)
}

/// A control group of this process, in a hierarchy with a memory controller.
#[derive(Debug)]
struct Group<'a> {
    version: Version,
    path: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl<'a> Group<'a> {
    /// Parses a line of `/proc/self/cgroup`: number, controllers and path, separated by colons.
    fn parse(line: &'a str) -> Option<Self> {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let version = match controllers {
            "" if number == "0" => Version::Two,
            controllers if controllers.split(',').any(|controller| controller == "memory") => Version::One,
            _ => return None,
        };
        Some(Self { version, path })
    }

    /// Returns the limits of the group and of the groups above it, as far as they are visible.
    fn limits(&self, root: &Path, mounts: &str) -> Vec<Room> {
        let mount = mounts.lines().filter_map(Mount::parse).find(|mount| mount.version == Some(self.version));
        let Some(mount) = mount else { return Vec::new() };
        // A container may see its own group as the root, under a path from outside.
        let below = Path::new(self.path).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let below: PathBuf = below.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let top = root.join(mount.point.trim_start_matches('/'));
        below.ancestors().filter_map(|below| self.version.room(&top.join(below))).collect()
    }
}

/// A mounted hierarchy of control groups.
struct Mount<'a> {
    version: Option<Version>,
    /// The group that is mounted as its root.
    root: &'a str,
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of `/proc/self/mountinfo`: see proc(5).
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let version = match (system.next()?, system.nth(1).unwrap_or_default()) {
            ("cgroup2", _) => Some(Version::Two),
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => Some(Version::One),
            _ => None,
        };
        Some(Self { version, root, point })
    }
}

impl Version {
    fn room(self, group: &Path) -> Option<Room> {
        // Above `memory.high` the kernel slows all processes of the group almost to a halt.
        let (limits, used, cached): (&[_], _, _) = match self {
            Self::One => (&["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_inactive_file"),
            Self::Two => (&["memory.max", "memory.high"], "memory.current", "inactive_file"),
        };
        // `max` is not a number, and means no limit.
        let limit = |file: &&str| text(&group.join(file))?.trim().parse().ok().filter(|limit| *limit < UNLIMITED);
        let limit: u64 = limits.iter().filter_map(limit).min()?;
        let used: u64 = text(&group.join(used))?.trim().parse().ok()?;
        let counts = text(&group.join("memory.stat")).unwrap_or_default();
        let cached = counts.lines().find_map(|line| line.strip_prefix(cached)?.trim().parse::<u64>().ok());
        let used = used.saturating_sub(cached.unwrap_or(0));
        Some(Room { limit, left: limit.saturating_sub(used) })
    }
}

fn text(file: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(file).ok()?.take(FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Creates a root directory with these files.
    fn root(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn room_of(files: &[(&str, &str)]) -> Option<(u64, u64)> {
        let root = root(files);
        room(root.path()).map(|Room { limit, left }| (limit / MIB, left / MIB))
    }

    const V2: (&str, &str) =
        ("proc/self/mountinfo", "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    const V1: (&str, &str) = (
        "proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
         32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );

    #[test]
    fn version_2_counts_what_is_used_and_leaves_out_idle_caches() {
        let room = room_of(&[
            V2,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
            ("sys/fs/cgroup/memory.current", "209715200\n"),
            ("sys/fs/cgroup/memory.stat", "anon 100\nfile 7\ninactive_file 104857600\nactive_file 5\n"),
        ]);
        assert_eq!(room, Some((512, 412)));
    }

    #[test]
    fn the_mark_above_which_version_2_slows_a_group_counts_as_its_limit() {
        let room = |max, high| {
            room_of(&[
                V2,
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", max),
                ("sys/fs/cgroup/memory.high", high),
                ("sys/fs/cgroup/memory.current", "209715200\n"),
            ])
        };
        assert_eq!(room("536870912\n", "419430400\n"), Some((400, 200)));
        assert_eq!(room("536870912\n", "max\n"), Some((512, 312)));
        assert_eq!(room("max\n", "419430400\n"), Some((400, 200)));
        assert_eq!(room("max\n", "max\n"), None);
    }

    #[test]
    fn a_group_above_may_leave_less() {
        let groups = [
            V2,
            ("proc/self/cgroup", "0::/pod/container\n"),
            ("sys/fs/cgroup/pod/memory.max", "629145600"),
            ("sys/fs/cgroup/pod/memory.current", "524288000"),
            ("sys/fs/cgroup/pod/container/memory.max", "536870912"),
            ("sys/fs/cgroup/pod/container/memory.current", "104857600"),
        ];
        assert_eq!(room_of(&groups), Some((600, 100)));
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(room_of(&[]), None);
        assert_eq!(room_of(&[V2, ("proc/self/cgroup", "0::/a\n")]), None);
        let none = [
            V2,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "5\n"),
        ];
        assert_eq!(room_of(&none), None);
        let none = [
            V1,
            ("proc/self/cgroup", "4:memory:/a\n0::/\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5\n"),
        ];
        assert_eq!(room_of(&none), None);
    }

    #[test]
    fn version_1_is_found_among_its_hierarchies() {
        let room = room_of(&[
            V1,
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n1:cpu:/\n0::/\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "209715200\n"),
            ("sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\n"),
        ]);
        assert_eq!(room, Some((512, 412)));
    }

    #[test]
    fn a_container_that_sees_its_path_outside_finds_its_group_at_the_mounts_root() {
        let outside = "35 31 0:32 /docker/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let room = room_of(&[
            ("proc/self/mountinfo", outside),
            ("proc/self/cgroup", "4:memory:/docker/c1\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600"),
        ]);
        assert_eq!(room, Some((512, 412)));
        // In a namespace that was entered later.
        let room = room_of(&[
            V2,
            ("proc/self/cgroup", "0::/../../other\n"),
            ("sys/fs/cgroup/memory.max", "536870912"),
            ("sys/fs/cgroup/memory.current", "536870913"),
        ]);
        assert_eq!(room, Some((512, 0)));
    }

    #[test]
    fn a_limit_that_is_not_a_number_is_ignored() {
        let odd = [
            V2,
            ("proc/self/cgroup", "0\n::\n0::/\nx:y\n"),
            ("sys/fs/cgroup/memory.max", "-1"),
            ("sys/fs/cgroup/memory.current", "many"),
        ];
        assert_eq!(room_of(&odd), None);
    }
}
