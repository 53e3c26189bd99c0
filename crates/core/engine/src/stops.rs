//! Ports whose rings workers stopped by themselves: their sessions are told, since nothing asks while a switch is idle.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lasthop_module_api::PortId;

/// The stops of ports with a guest.
#[derive(Debug, Default)]
pub(crate) struct Stops(Mutex<HashMap<PortId, StopAlarm>>);

/// The alarm of one session.
#[derive(Debug)]
struct StopAlarm {
    /// A non-blocking eventfd of ours.
    doorbell: Arc<OwnedFd>,
    /// Why rings stopped; `None` since a ring was started.
    why: Option<String>,
    is_told: bool,
}

impl Stops {
    fn all(&self) -> MutexGuard<'_, HashMap<PortId, StopAlarm>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to `doorbell` from now on when rings of `port` stop.
    pub(crate) fn watch(&self, port: PortId, doorbell: Arc<OwnedFd>) {
        self.all().insert(port, StopAlarm { doorbell, why: None, is_told: false });
    }

    /// Notes that a worker stopped rings of `port`. The same reason counts once until a ring is started.
    pub(crate) fn note(&self, port: PortId, why: &str) {
        let mut all = self.all();
        let Some(alarm) = all.get_mut(&port).filter(|alarm| alarm.why.as_deref() != Some(why)) else {
            return;
        };
        (alarm.why, alarm.is_told) = (Some(why.to_owned()), false);
        // The write only fails if it is readable already.
        let _ = rustix::io::write(&alarm.doorbell, &1_u64.to_ne_bytes());
    }

    /// Why rings of `port` stopped, once.
    pub(crate) fn take(&self, port: PortId) -> Option<String> {
        let mut all = self.all();
        let alarm = all.get_mut(&port).filter(|alarm| !alarm.is_told)?;
        alarm.is_told = alarm.why.is_some();
        alarm.why.clone()
    }

    /// Notes that a ring of `port` was started.
    pub(crate) fn restarted(&self, port: PortId) {
        self.all().get_mut(&port).into_iter().for_each(|alarm| alarm.why = None);
    }

    /// Removes the session of `port`.
    pub(crate) fn forget(&self, port: PortId) {
        self.all().remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const PORT: PortId = PortId(1);

    #[test]
    fn each_stop_is_told_once() {
        let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let rings = |fd: &OwnedFd| rustix::io::read(fd, &mut [0; 8]).is_ok();
        let stops = Stops::default();
        stops.note(PORT, "nobody is there");
        assert_eq!(stops.take(PORT), None);
        stops.watch(PORT, Arc::clone(&fd));
        assert!(!rings(&fd) && stops.take(PORT).is_none());
        // Each of several workers notes it.
        (0..3).for_each(|_| stops.note(PORT, "one"));
        assert!(rings(&fd));
        assert_eq!((stops.take(PORT).as_deref(), stops.take(PORT)), (Some("one"), None));
        stops.note(PORT, "one");
        assert!(!rings(&fd) && stops.take(PORT).is_none(), "it has not restarted");
        stops.note(PORT, "two");
        assert!(rings(&fd));
        assert_eq!(stops.take(PORT).as_deref(), Some("two"));
        stops.restarted(PORT);
        assert_eq!(stops.take(PORT), None);
        stops.note(PORT, "two");
        assert!(rings(&fd));
        assert_eq!(stops.take(PORT).as_deref(), Some("two"));
        stops.forget(PORT);
        stops.note(PORT, "three");
        assert!(!rings(&fd) && stops.take(PORT).is_none());
    }
}
