//! Whether another user may connect to a socket, by users, groups and mode bits.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of users and groups, which has the users of VMMs.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// The usual group of KVM's users on all distributions.
const GROUP_USUAL: &str = "kvm";

/// A user and its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Its number.
    pub uid: u32,
    /// The numbers of its groups.
    pub gids: Vec<u32>,
}

impl Credentials {
    /// The first of these users that exists on this machine.
    pub fn of_one(names: &[&str]) -> Option<(String, Self)> {
        let users = std::fs::read_to_string(USERS).ok()?;
        let groups = std::fs::read_to_string(GROUPS).unwrap_or_default();
        names.iter().find_map(|name| Some(((*name).to_owned(), Self::in_tables(name, &users, &groups)?)))
    }

    /// Reads passwd(5) and group(5).
    fn in_tables(name: &str, users: &str, groups: &str) -> Option<Self> {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let user = users.lines().map(fields).find(|fields| fields.first().is_some_and(|own| own == name))?;
        let primary = user.get(3)?.parse().ok()?;
        let is_member =
            |fields: &Vec<String>| fields.get(3).is_some_and(|all| all.split(',').any(|one| one == name));
        let others = groups.lines().map(fields).filter(is_member);
        let others = others.filter_map(|fields| fields.get(2)?.parse().ok());
        Some(Self { uid: user.get(2)?.parse().ok()?, gids: [primary].into_iter().chain(others).collect() })
    }

    /// The first part of `path` that this user may not pass to connect.
    pub fn closed_at(&self, path: &Path) -> Option<PathBuf> {
        const SEARCH: u32 = 1;
        const WRITE: u32 = 2;
        if self.uid == 0 {
            return None;
        }
        let mut parts: Vec<&Path> = path.ancestors().collect();
        parts.reverse();
        let is_closed = |part: &&Path| {
            let Ok(meta) = part.metadata() else { return false };
            let wanted = if meta.is_dir() { SEARCH } else { WRITE };
            let shift = if meta.uid() == self.uid {
                6
            } else if self.gids.contains(&meta.gid()) {
                3
            } else {
                0
            };
            meta.mode() >> shift & wanted == 0
        };
        parts.into_iter().find(is_closed).map(Path::to_path_buf)
    }

    /// A group that lets this user in, by name or number: the usual one if the user is in it.
    pub fn group(&self) -> Option<String> {
        self.group_in(&std::fs::read_to_string(GROUPS).unwrap_or_default())
    }

    fn group_in(&self, groups: &str) -> Option<String> {
        let named = |gid: u32| {
            let is_it = |fields: &Vec<&str>| fields.get(2).is_some_and(|own| own.parse() == Ok(gid));
            let line = groups.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(is_it);
            line.and_then(|fields| fields.first().map(|name| (*name).to_owned()))
        };
        let names: Vec<String> =
            self.gids.iter().map(|gid| named(*gid).unwrap_or_else(|| gid.to_string())).collect();
        names.iter().find(|name| *name == GROUP_USUAL).or(names.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const USERS_HERE: &str = "root:x:0:0:root:/root:/bin/bash\nlibvirt-qemu:x:64055:107:Libvirt Qemu,,,:/var/lib/libvirt:/usr/sbin/nologin\n";
    const GROUPS_HERE: &str = "root:x:0:\nkvm:x:107:\nlibvirt-qemu:x:64055:libvirt-qemu\n";

    #[test]
    fn a_user_has_its_groups_and_one_of_them_is_named() {
        let user = Credentials::in_tables("libvirt-qemu", USERS_HERE, GROUPS_HERE).expect("a user");
        assert_eq!(user, Credentials { uid: 64055, gids: vec![107, 64055] });
        assert_eq!(user.group_in(GROUPS_HERE).as_deref(), Some("kvm"));
        assert_eq!(Credentials { uid: 7, gids: vec![9] }.group_in(GROUPS_HERE).as_deref(), Some("9"));
        assert_eq!(Credentials::in_tables("qemu", USERS_HERE, GROUPS_HERE), None);
    }

    #[test]
    fn a_path_is_closed_where_mode_bits_say_so() {
        let base = tempfile::tempdir().expect("a directory");
        let (dir, file) = (base.path(), base.path().join("s"));
        std::fs::write(&file, "").expect("written");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        let gid = file.metadata().expect("there").gid();
        let (stranger, member) =
            (Credentials { uid: 4711, gids: vec![] }, Credentials { uid: 4711, gids: vec![gid] });
        mode(dir, 0o755);
        mode(&file, 0o660);
        assert_eq!(stranger.closed_at(&file), Some(file.clone()));
        assert_eq!(member.closed_at(&file), None);
        mode(dir, 0o700);
        assert_eq!(member.closed_at(&file).as_deref(), Some(dir));
    }
}
