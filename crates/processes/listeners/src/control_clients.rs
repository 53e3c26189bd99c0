//! The processes that are connected to the control interface.

use std::collections::BTreeMap;
use std::time::Instant;

use lasthop_api::report::ControlClient;
use lasthop_runtime::procfs;

/// The most remembered connections: four times as many as the switch process serves at a time. Beyond that the oldest
/// ones of ended processes are forgotten, or the oldest one.
const REMEMBERED_MAX: usize = 256;

/// A process at the time of its connection.
#[derive(Clone, Debug)]
struct Connected {
    pid: Option<i32>,
    name: Option<String>,
    since: Instant,
}

/// Processes by the number of their connection.
#[derive(Debug, Default)]
pub struct ControlClients {
    connected: BTreeMap<u64, Connected>,
}

impl ControlClients {
    /// Adds the process of connection `number`, if the system tells it.
    pub fn add(&mut self, number: u64, pid: Option<i32>) {
        if self.connected.len() >= REMEMBERED_MAX {
            let is_there = |client: &Connected| client.pid.is_none_or(|pid| procfs::dir(pid).exists());
            self.connected.retain(|_, client| is_there(client));
        }
        if self.connected.len() >= REMEMBERED_MAX {
            self.connected.pop_first();
        }
        let name = pid.and_then(|pid| procfs::text(pid, "comm")).map(|name| name.trim_end().to_owned());
        self.connected.insert(number, Connected { pid, name, since: Instant::now() });
    }

    /// The processes of these connections, without duplicates, each with its first connection.
    pub fn of(&self, numbers: &[u64]) -> Vec<ControlClient> {
        let mut clients: Vec<ControlClient> = Vec::new();
        for connected in numbers.iter().filter_map(|number| self.connected.get(number)) {
            let Connected { pid, name, since } = connected.clone();
            let connected_ms = since.elapsed().as_millis() as u64;
            match clients.iter_mut().find(|client| client.pid == pid) {
                Some(known) => known.connected_ms = known.connected_ms.max(connected_ms),
                None => clients.push(ControlClient { pid, name, connected_ms }),
            }
        }
        clients
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_connections_is_told_once() {
        let mut clients = ControlClients::default();
        let own = std::process::id() as i32;
        (5..7).for_each(|number| clients.add(number, Some(own)));
        clients.add(7, None);
        let told = clients.of(&[5, 6, 7, 8]);
        assert_eq!(told.iter().map(|client| client.pid).collect::<Vec<_>>(), [Some(own), None]);
        assert!(told[0].name.as_ref().is_some_and(|name| !name.is_empty()), "{told:?}");
    }

    #[test]
    fn no_more_are_remembered_than_may_be_and_those_that_live_stay() {
        let mut clients = ControlClients::default();
        clients.add(0, Some(std::process::id() as i32));
        (1..1000).for_each(|number| clients.add(number, Some(i32::MAX)));
        assert!(clients.connected.len() <= REMEMBERED_MAX);
        assert_eq!(clients.of(&[0]).len(), 1);
    }
}
