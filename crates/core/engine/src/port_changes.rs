//! Which ports are being changed: each by one thread at a time, and by no session while sessions are paused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lasthop_module_api::PortId;

/// Sessions change the rings of their ports side by side, and the control side adds and removes ports meanwhile. A change takes
/// several tasks to workers; those of two changes of one port must not mix.
#[derive(Debug, Default)]
pub(crate) struct PortChanges {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    changing: BTreeSet<PortId>,
    /// Changes of the control side that wait. A session that changes its port without end would else take the next turn, too, before
    /// they are awake.
    awaited: BTreeMap<PortId, u32>,
    is_paused: bool,
}

/// A change of a port, under way until this is dropped.
#[derive(Debug)]
pub(crate) struct PortChange<'a> {
    of: &'a PortChanges,
    port: PortId,
}

impl PortChanges {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session begins to change its port. Waits while another change of the port is under way or the control side waits for one, and
    /// while sessions are paused.
    pub(crate) fn session_change(&self, port: PortId) -> PortChange<'_> {
        let mut state = self.wait_while(self.state(), |state| {
            state.is_paused || state.changing.contains(&port) || state.awaited.contains_key(&port)
        });
        state.changing.insert(port);
        PortChange { of: self, port }
    }

    /// The control side begins to change a port. Waits for one change of its session at most, which takes some tasks.
    pub(crate) fn control_change(&self, port: PortId) -> PortChange<'_> {
        let mut state = self.state();
        *state.awaited.entry(port).or_default() += 1;
        let mut state = self.wait_while(state, |state| state.changing.contains(&port));
        state.changing.insert(port);
        let left = state.awaited.remove(&port).unwrap_or_default().saturating_sub(1);
        if left > 0 {
            state.awaited.insert(port, left);
        }
        PortChange { of: self, port }
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        mut must_wait: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        let state = self.changed.wait_while(state, |state| must_wait(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Sessions begin no change from now on; waits for those under way, up to `timeout`. Returns whether none is left.
    pub(crate) fn pause(&self, timeout: Duration) -> bool {
        let mut state = self.state();
        state.is_paused = true;
        let waited = self.changed.wait_timeout_while(state, timeout, |state| !state.changing.is_empty());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Sessions may change ports again.
    pub(crate) fn resume(&self) {
        self.state().is_paused = false;
        self.changed.notify_all();
    }
}

impl Drop for PortChange<'_> {
    fn drop(&mut self) {
        self.of.state().changing.remove(&self.port);
        self.of.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_port_is_changed_by_one_thread_at_a_time() {
        let changes = PortChanges::default();
        let (inside, others) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let change = |port: u16| {
            for round in 0..200 {
                let _change = if round % 3 == 0 {
                    changes.control_change(PortId(port))
                } else {
                    changes.session_change(PortId(port))
                };
                if port == 1 {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                } else {
                    others.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        std::thread::scope(|scope| {
            for port in [1, 1, 1, 2] {
                scope.spawn(move || change(port));
            }
        });
        assert_eq!(others.load(Ordering::SeqCst), 200);
    }

    #[test]
    fn a_session_that_changes_without_end_lets_the_control_side_go_first() {
        let changes = PortChanges::default();
        let order = Mutex::new(Vec::new());
        let change = changes.session_change(PortId(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _change = changes.control_change(PortId(1));
                order.lock().unwrap().push("control");
            });
            while changes.state().awaited.is_empty() {
                std::thread::yield_now();
            }
            // At once, before the one that waits is awake.
            drop(change);
            let _change = changes.session_change(PortId(1));
            order.lock().unwrap().push("session");
        });
        assert_eq!(*order.lock().unwrap(), ["control", "session"]);
        assert!(changes.state().awaited.is_empty());
    }

    #[test]
    fn a_session_waits_while_the_switch_is_paused_and_the_control_side_does_not() {
        let changes = Arc::new(PortChanges::default());
        let change = changes.session_change(PortId(1));
        assert!(!changes.pause(Duration::from_millis(1)), "one is under way");
        drop(change);
        assert!(changes.pause(Duration::ZERO));
        drop(changes.control_change(PortId(1)));
        let (begun, late) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&changes));
        let begins = Arc::clone(&begun);
        let session = std::thread::spawn(move || {
            let _change = late.session_change(PortId(1));
            begins.store(1, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(begun.load(Ordering::SeqCst), 0);
        changes.resume();
        session.join().unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }
}
