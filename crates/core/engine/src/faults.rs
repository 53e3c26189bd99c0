//! Rings that a worker stops by itself, for a fault of their guest or its front end.

use lasthop_guestmem::guard;
use lasthop_module_api::PortId;

use crate::worker::Worker;

impl Worker {
    /// Stops the rings of ports whose memory was truncated.
    pub(crate) fn quarantine(&mut self) {
        self.faults_seen = guard::faults();
        let mut ports: Vec<PortId> = self.fds.keys().map(|(port, _)| *port).collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports.into_iter().filter(|port| self.fabric.memory_is_dead(*port)).collect::<Vec<_>>() {
            self.stop_for(port, "the guest's memory file was cut short; restart the guest");
        }
    }

    /// Stops the rings of a port for a fault of its guest or front end, until they are started again.
    pub(crate) fn fail(&mut self, port: PortId, why: impl Into<String>) {
        let why = why.into();
        self.pool.stops().note(port, &why);
        self.failures.insert(port, why);
    }

    /// Notes ports of which a ring is broken.
    pub(crate) fn note_broken(&mut self) {
        while let Some((port, error)) = self.fabric.take_broken() {
            self.pool.stops().note(port, &error.to_string());
        }
    }

    /// Whether the rings of a port were stopped for a fault, or are being stopped.
    pub(crate) fn has_failed(&self, port: PortId) -> bool {
        self.failures.contains_key(&port)
    }

    /// Stops the rings of a port for a fault of its guest or front end; records the reason.
    pub(crate) fn stop_for(&mut self, port: PortId, why: &str) {
        self.fail(port, why);
        self.continue_stopping(port);
    }

    /// Continues to stop a port's rings after other workers have used them. Rings that its session has restarted
    /// meanwhile stay.
    pub(crate) fn continue_stopping(&mut self, port: PortId) {
        if self.failures.contains_key(&port) && !self.stop_all(port) {
            self.pool.mailbox(self.stats.index).post(Box::new(move |worker| worker.continue_stopping(port)));
        }
    }

    /// Stops the rings whose home is this worker. The session stops them once more, at all workers, and then gets their
    /// positions. Returns false if other workers take long to leave them.
    fn stop_all(&mut self, port: PortId) -> bool {
        let at_home = self.fds.iter().filter(|((owner, _), fds)| *owner == port && fds.is_home);
        let indices: Vec<u16> = at_home.map(|((_, index), _)| *index).collect();
        let mut all = true;
        for index in indices {
            match self.stop_ring(port, index) {
                Some(Some(base)) => self.pool.note_stopped(port, index, base),
                Some(None) => {}
                None => all = false,
            }
        }
        all
    }

    /// The reason for which all rings of a port were stopped, if they were.
    pub(crate) fn failure(&self, port: PortId) -> Option<String> {
        self.failures.get(&port).cloned().or_else(|| self.control_failure(port))
    }

    pub(crate) fn control_failure(&self, port: PortId) -> Option<String> {
        self.controls.error(port).map(|error| format!("control queue: {error}"))
    }
}
