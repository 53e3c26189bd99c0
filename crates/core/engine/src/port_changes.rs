//! Serializes changes of ports: one thread at a time changes a port, and no session does while sessions are paused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lasthop_module_api::PortId;

/// Sessions change the rings of their ports concurrently, while the control side adds and removes ports. A change
/// consists of several tasks for workers; tasks of two changes of one port must not mix.
#[derive(Debug, Default)]
pub(crate) struct PortChanges {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    changing: BTreeSet<PortId>,
    /// Number of waiting changes of the control side. Otherwise a session that keeps changing its port would always be
    /// first.
    awaited: BTreeMap<PortId, u32>,
    is_paused: bool,
}

/// A change of a port, in progress until this is dropped.
#[derive(Debug)]
pub(crate) struct PortChange<'a> {
    of: &'a PortChanges,
    port: PortId,
}

impl PortChanges {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session's change of its port. Waits while another change of the port is in progress, while the control
    /// side waits for one, and while sessions are paused.
    pub(crate) fn session_change(&self, port: PortId) -> PortChange<'_> {
        let mut state = self.wait_while(self.state(), |state| {
            state.is_paused || state.changing.contains(&port) || state.awaited.contains_key(&port)
        });
        state.changing.insert(port);
        PortChange { of: self, port }
    }

    /// Begins a change by the control side. Waits for at most one change of the port's session, which takes some tasks.
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

    /// Keeps sessions from beginning changes, and waits up to `timeout` for those in progress. Returns whether none is
    /// left.
    pub(crate) fn pause(&self, timeout: Duration) -> bool {
        let mut state = self.state();
        state.is_paused = true;
        let waited = self.changed.wait_timeout_while(state, timeout, |state| !state.changing.is_empty());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Lets sessions change ports again.
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
            // At once, before the waiting thread is awake.
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
