//! The driver process's ports and I/O threads, from the control side, and the choice of a device's back end.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use lasthop_device::{Backend, DeviceFacts, DriverCounters};
use lasthop_frontend::{Vnic, VnicOptions, VnicPair};
use lasthop_vhost::features;
use lasthop_wire::tunnel;
use lasthop_wire::vnet::{HEADER_BYTES, HEADER_BYTES_LEGACY};

use crate::event::{Report, Reporter, Reports, reports};
use crate::io::IoThread;
use crate::lane::{Lane, LaneState};
use crate::packet::{self, PacketQueue};
use crate::stats::{DevicePortId, DevicePortStats, DriverSettings, DriverStats};
use crate::tap::TapQueue;
use crate::udp::{self, UdpQueue};
use crate::xdp::XdpQueue;
use crate::{DriverError, DriverEvent, Needs, Queue, QueueError};

/// Features of the vNIC that are the same for all devices.
const RING_FEATURES: u64 = features::VERSION_1
    | features::EVENT_IDX
    | features::MRG_RXBUF
    | features::MQ
    | features::MAC
    | features::MTU
    | features::STATUS;

/// The thread and number of a lane.
#[derive(Clone, Copy, Debug)]
struct LaneId {
    thread: usize,
    number: u32,
}

#[derive(Debug)]
struct AttachedPort {
    facts: DeviceFacts,
    vnic: Option<Vnic>,
    /// Incremented with each device and each switch.
    generation: u64,
    lanes: Vec<LaneId>,
    /// Descriptors of a device that have no queue yet.
    spare: Vec<OwnedFd>,
    /// The memory of its XDP sockets.
    memory: Option<OwnedFd>,
    /// Queues without a lane, since there is no switch.
    queues: Vec<Box<dyn Queue>>,
    /// Counters of former lanes.
    past: DriverCounters,
    /// Kinds of events that were reported in this generation.
    told: Vec<std::mem::Discriminant<DriverEvent>>,
}

impl AttachedPort {
    fn has_device(&self) -> bool {
        !(self.lanes.is_empty() && self.spare.is_empty() && self.queues.is_empty())
    }

    /// The memory that the vNIC must have.
    fn memory(&self) -> Result<Option<OwnedFd>, DriverError> {
        let copy = self.memory.as_ref().map(OwnedFd::try_clone).transpose();
        copy.map_err(|error| DriverError::System("copy a descriptor", error))
    }
}

/// The driver process's ports and threads. One thread makes all calls; those that need the switch wait for its answers.
#[derive(Debug)]
pub struct Driver {
    threads: Vec<IoThread>,
    ports: BTreeMap<DevicePortId, AttachedPort>,
    reporter: Reporter,
    reports: Reports,
    next_lane: u32,
    next_generation: u64,
}

impl Driver {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`DriverError::System`].
    pub fn start(settings: &DriverSettings) -> Result<Self, DriverError> {
        let (reporter, reports) = reports().map_err(|error| DriverError::System("make an eventfd", error))?;
        let threads = (0..settings.threads.max(1))
            .map(|number| IoThread::start(number, settings, reporter.clone()))
            .collect::<Result<_, _>>()
            .map_err(|error| DriverError::System("start an I/O thread", error))?;
        Ok(Self { threads, ports: BTreeMap::new(), reporter, reports, next_lane: 0, next_generation: 0 })
    }

    /// Adds a port: `device` has its descriptors (see [`lasthop_device::OpenedDevice`]), `switch` is a connection on
    /// which the switch serves a vhost-user session.
    ///
    /// # Errors
    /// [`DriverError`]; then there is no port.
    pub fn attach(
        &mut self,
        id: DevicePortId,
        facts: DeviceFacts,
        device: Vec<OwnedFd>,
        switch: UnixStream,
    ) -> Result<(), DriverError> {
        if self.ports.contains_key(&id) {
            return Err(DriverError::PortExists(id));
        }
        let (spare, memory) = checked_device(&facts, device)?;
        let port = AttachedPort {
            facts,
            vnic: None,
            generation: 0,
            lanes: Vec::new(),
            spare,
            memory,
            queues: Vec::new(),
            past: DriverCounters::default(),
            told: Vec::new(),
        };
        self.ports.insert(id, port);
        self.replace_switch(id, switch).inspect_err(|_| _ = self.ports.remove(&id))
    }

    /// Removes a port: closes its device and its vNIC.
    ///
    /// # Errors
    /// [`DriverError::NoSuchPort`]. [`DriverError::NoAnswer`]; then the port is there with those of its queues that
    /// silent threads serve.
    pub fn detach(&mut self, id: DevicePortId) -> Result<(), DriverError> {
        self.recall(id)?;
        self.ports.remove(&id);
        Ok(())
    }

    /// Gives a port another connection to a switch, which replaces the old one.
    ///
    /// # Errors
    /// [`DriverError`]; then the port has no switch, and keeps its device.
    pub fn replace_switch(&mut self, id: DevicePortId, switch: UnixStream) -> Result<(), DriverError> {
        self.recall(id)?;
        let port = self.ports.get_mut(&id).ok_or(DriverError::NoSuchPort(id))?;
        let pairs = match &mut port.vnic {
            Some(vnic) => vnic.reconnect(switch)?,
            None => {
                let (vnic, pairs) = Vnic::in_memory(switch, options(&port.facts)?, port.memory()?)?;
                port.vnic = Some(vnic);
                pairs
            }
        };
        self.serve(id, pairs)
    }

    /// Gives a port another device, for example one that came back. If it is of another kind, the connection to the
    /// switch ends, and [`DriverEvent::SwitchGone`] requests another one.
    ///
    /// # Errors
    /// [`DriverError`]; then the port has no device.
    pub fn replace_device(
        &mut self,
        id: DevicePortId,
        facts: DeviceFacts,
        device: Vec<OwnedFd>,
    ) -> Result<(), DriverError> {
        let (spare, memory) = checked_device(&facts, device)?;
        let wanted = needs(&facts)?;
        self.recall(id)?;
        let port = self.ports.get_mut(&id).ok_or(DriverError::NoSuchPort(id))?;
        port.queues.clear();
        let fits = needs(&port.facts)? == wanted && port.facts.queues == facts.queues;
        (port.facts, port.spare, port.memory) = (facts, spare, memory);
        let (features, memory) = (RING_FEATURES | port.facts.features, port.memory()?);
        let reset = match &mut port.vnic {
            Some(vnic) if fits => vnic.reset(features, memory).map_err(|error| error.to_string()),
            Some(_) => Err("the device is of another kind than the last one".to_owned()),
            None => return Ok(()),
        };
        match reset {
            Ok(pairs) => self.serve(id, pairs),
            Err(why) => {
                port.vnic = None;
                let event = DriverEvent::SwitchGone { port: id, why };
                self.reporter.report(Report { generation: port.generation, event });
                Ok(())
            }
        }
    }

    /// Takes a port's lanes back from their threads, and takes the queues out of the lanes. Lanes of silent threads stay
    /// the port's.
    fn recall(&mut self, id: DevicePortId) -> Result<(), DriverError> {
        let port = self.ports.get_mut(&id).ok_or(DriverError::NoSuchPort(id))?;
        let mut recalled = Ok(());
        for place in std::mem::take(&mut port.lanes) {
            match self.threads[place.thread].ask(move |io| io.remove(place.number)) {
                Ok(Some(mut lane)) => {
                    port.past += settled(lane.count());
                    port.queues.push(lane.queue);
                }
                Ok(None) => {}
                Err(error) => {
                    port.lanes.push(place);
                    recalled = recalled.and(Err(error));
                }
            }
        }
        self.next_generation += 1;
        port.generation = self.next_generation;
        port.told.clear();
        recalled
    }

    /// Has threads serve the pairs, with the existing queues, or else with the port's spare descriptors.
    fn serve(&mut self, id: DevicePortId, pairs: Vec<VnicPair>) -> Result<(), DriverError> {
        let port = self.ports.get_mut(&id).ok_or(DriverError::NoSuchPort(id))?;
        let header_bytes = if port.facts.is_tunnel() { tunnel::HEADER_BYTES } else { HEADER_BYTES };
        if !pairs.iter().all(|pair| pair.is_mergeable() && pair.header_bytes() == header_bytes) {
            return Err(DriverError::TooFewFeatures);
        }
        if port.queues.is_empty() {
            port.queues = open_queues(port, &pairs)?;
        }
        let queues = std::mem::take(&mut port.queues);
        let Some(vnic) = &port.vnic else { return Err(DriverError::NoSuchPort(id)) };
        for (pair, queue) in pairs.into_iter().zip(queues) {
            let session = vnic.fd().try_clone_to_owned();
            let session = session.map_err(|error| DriverError::System("copy a descriptor", error))?;
            let lane = start_lane((id, port.generation), pair, queue, session, &self.reporter)?;
            let thread = lightest(&self.threads)?;
            let number = self.next_lane;
            self.next_lane = self.next_lane.wrapping_add(1);
            // Before the answer, since a thread that is late adds it after all.
            port.lanes.push(LaneId { thread, number });
            let added = self.threads[thread].ask(move |io| io.add(number, lane))?;
            added.map_err(|(_, error)| DriverError::System("wait for a device", error))?;
        }
        Ok(())
    }

    /// Asks all threads for a sign of life. Once the last one gives it, [`Self::events_fd`] is readable and
    /// [`Self::has_answered`].
    pub fn probe(&self) {
        self.threads.iter().for_each(IoThread::probe);
    }

    /// Whether all threads have given a sign of life since the last [`Self::probe`].
    #[must_use]
    pub fn has_answered(&self) -> bool {
        self.threads.iter().all(IoThread::has_answered)
    }

    /// The error of a thread that let a call wait in vain and still does not answer, if there is one. Its queues stand
    /// still, and no call gets them back: another driver has to replace this one.
    #[must_use]
    pub fn silence(&self) -> Option<DriverError> {
        self.threads.iter().position(IoThread::is_silent).map(DriverError::NoAnswer)
    }

    /// Readable when there may be an event.
    #[must_use]
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.reports.fd()
    }

    /// The next event, if there is one. Skips events of a replaced device or switch, and reports each kind once for all
    /// queues.
    pub fn next_event(&mut self) -> Option<DriverEvent> {
        while let Some(Report { generation, event }) = self.reports.take() {
            let (DriverEvent::DeviceGone { port, .. }
            | DriverEvent::RingStopped { port, .. }
            | DriverEvent::SwitchGone { port, .. }) = &event;
            let Some(port) = self.ports.get_mut(port) else { continue };
            let kind = std::mem::discriminant(&event);
            if port.generation == generation && !port.told.contains(&kind) {
                port.told.push(kind);
                return Some(event);
            }
        }
        None
    }

    /// Counters of ports and threads.
    ///
    /// # Errors
    /// [`DriverError::NoAnswer`].
    pub fn stats(&self) -> Result<DriverStats, DriverError> {
        // One task for each thread, however many ports there are.
        let (mut threads, mut lanes) = (Vec::new(), BTreeMap::new());
        for thread in &self.threads {
            let (stats, counts) = thread.ask(|io| (io.stats(), io.counts()))?;
            threads.push(stats);
            lanes.extend(counts);
        }
        let ports = self.ports.iter().map(|(id, port)| port_stats(*id, port, &lanes));
        Ok(DriverStats { ports: ports.collect(), threads })
    }

    /// Counters of each of a port's queues, since it got this device and switch. Reports have their sum; tests see here that the queues
    /// share the port's flows.
    ///
    /// # Errors
    /// [`DriverError::NoSuchPort`], [`DriverError::NoAnswer`].
    pub fn queue_counters(&self, id: DevicePortId) -> Result<Vec<DriverCounters>, DriverError> {
        let port = self.ports.get(&id).ok_or(DriverError::NoSuchPort(id))?;
        let counted = port.lanes.iter().map(|place| self.count(*place));
        Ok(counted
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .map(|(counters, _)| counters)
            .collect())
    }

    fn count(
        &self,
        LaneId { thread, number }: LaneId,
    ) -> Result<Option<(DriverCounters, LaneState)>, DriverError> {
        self.threads[thread].ask(move |io| io.count(number))
    }
}

/// Counters of a port, with those of its `lanes`.
fn port_stats(
    id: DevicePortId,
    port: &AttachedPort,
    lanes: &BTreeMap<u32, (DriverCounters, LaneState)>,
) -> DevicePortStats {
    let (mut counters, mut states) = (port.past, Vec::new());
    for (more, state) in port.lanes.iter().filter_map(|place| lanes.get(&place.number)) {
        counters += *more;
        states.push(*state);
    }
    let has_switch = !states.is_empty() && !states.contains(&LaneState::NoSwitch);
    DevicePortStats {
        port: id,
        counters,
        has_device: port.has_device() && !states.contains(&LaneState::NoDevice),
        has_switch,
        features: port.vnic.as_ref().filter(|_| has_switch).map_or(0, Vnic::features),
    }
}

/// Final counters of a lane: waiting frames count as lost.
fn settled(mut counters: DriverCounters) -> DriverCounters {
    counters.drops[lasthop_device::DeviceDropReason::DeviceFull as usize] += counters.waiting;
    counters.waiting = 0;
    counters
}

/// Checks a device, and separates its queues' descriptors from the memory of XDP sockets, which comes last.
fn checked_device(
    facts: &DeviceFacts,
    mut device: Vec<OwnedFd>,
) -> Result<(Vec<OwnedFd>, Option<OwnedFd>), DriverError> {
    let descriptors = device.len();
    let memory = if facts.backend == Backend::AfXdp { device.pop() } else { None };
    if usize::from(facts.queues) != device.len() || device.is_empty() {
        let (name, queues) = (facts.name.clone(), facts.queues);
        return Err(DriverError::WrongDescriptors { name, queues, descriptors });
    }
    let is_header = [HEADER_BYTES, HEADER_BYTES_LEGACY].contains(&usize::from(facts.header_bytes));
    if facts.backend == Backend::AfPacket && !is_header {
        let (name, header_bytes) = (facts.name.clone(), facts.header_bytes);
        return Err(DriverError::WrongHeaders { name, header_bytes });
    }
    Ok((device, memory))
}

fn options(facts: &DeviceFacts) -> Result<VnicOptions, DriverError> {
    let Needs { rx_entries, tx_entries, arena_bytes } = needs(facts)?;
    let features = RING_FEATURES | facts.features;
    let has_tunnel = facts.is_tunnel();
    let queue_pairs = facts.queues;
    Ok(VnicOptions { features, queue_pairs, rx_entries, tx_entries, arena_bytes, has_tunnel })
}

/// The back ends of a port's queues, for its descriptors.
fn open_queues(port: &mut AttachedPort, pairs: &[VnicPair]) -> Result<Vec<Box<dyn Queue>>, DriverError> {
    let descriptors = (0..).zip(std::mem::take(&mut port.spare));
    descriptors.zip(pairs).map(|((number, fd), pair)| queue(&port.facts, number, fd, pair)).collect()
}

/// Starts a lane for a started queue. Without a device it drops frames from the switch.
fn start_lane(
    (id, generation): (DevicePortId, u64),
    mut pair: VnicPair,
    mut queue: Box<dyn Queue>,
    session: OwnedFd,
    reporter: &Reporter,
) -> Result<Lane, DriverError> {
    let mut counters = DriverCounters::default();
    let state = match queue.start(&mut pair, &mut counters) {
        Ok(()) => LaneState::Open,
        Err(QueueError::Vnic(error)) => return Err(error.into()),
        Err(error) => {
            let event = DriverEvent::DeviceGone { port: id, why: error.to_string() };
            reporter.report(Report { generation, event });
            LaneState::NoDevice
        }
    };
    pair.rx.flush()?;
    let mut lane = Lane::new((id, generation), pair, queue, session, state);
    lane.counters = counters;
    Ok(lane)
}

/// The thread with the fewest lanes, of those that answer.
fn lightest(threads: &[IoThread]) -> Result<usize, DriverError> {
    let lanes = |thread: &IoThread| thread.ask(|io| io.stats().lanes).ok();
    let answering = threads.iter().enumerate().filter_map(|(number, thread)| Some((lanes(thread)?, number)));
    answering.min().map(|(_, number)| number).ok_or(DriverError::NoAnswer(0))
}

/// The properties of the vNIC that a device's back end needs.
fn needs(facts: &DeviceFacts) -> Result<Needs, DriverError> {
    match facts.backend {
        Backend::AfPacket | Backend::Tap => Ok(packet::NEEDS),
        Backend::Udp | Backend::Raw => Ok(udp::needs(facts)),
        Backend::AfXdp => Ok(XdpQueue::needs(facts)?),
    }
}

/// The back end of queue `number` of a device, for a queue pair of the vNIC.
fn queue(
    facts: &DeviceFacts,
    number: u16,
    fd: OwnedFd,
    pair: &VnicPair,
) -> Result<Box<dyn Queue>, DriverError> {
    Ok(match facts.backend {
        Backend::AfPacket => Box::new(PacketQueue::new(facts, fd, pair)?),
        Backend::Tap => Box::new(TapQueue::new(fd, pair)?),
        Backend::AfXdp => Box::new(XdpQueue::new(facts, number, fd)?),
        Backend::Udp | Backend::Raw => {
            let tunnel = facts.tunnel.ok_or_else(|| DriverError::NoTunnel(facts.name.clone()))?;
            Box::new(UdpQueue::new(fd, facts.features, tunnel, pair)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::tests::{facts, switch};

    /// A port over a socket, which is no device: its lane serves the switch alone. Returns the switch's end.
    fn attach(driver: &mut Driver, port: u32) -> impl Sized + use<> {
        let ((_, device), (front, rings, maps)) = (UnixDatagram::pair().unwrap(), switch());
        device.set_nonblocking(true).unwrap();
        driver.attach(DevicePortId(port), facts(), vec![device.into()], front).unwrap();
        (rings, maps)
    }

    #[test]
    fn a_silent_thread_keeps_its_own_queues_and_no_others() {
        let mut driver = Driver::start(&DriverSettings { threads: 2, ..DriverSettings::default() }).unwrap();
        let (one, two, three) = (DevicePortId(1), DevicePortId(2), DevicePortId(3));
        let _switch = [attach(&mut driver, 1), attach(&mut driver, 2)];
        let threads = [one, two].map(|port| driver.ports[&port].lanes[0].thread);
        assert_eq!(threads, [0, 1]);
        // As a port whose first queue is with one thread, and the second one with the other.
        let moved = driver.ports.get_mut(&two).unwrap().lanes.pop().unwrap();
        driver.ports.get_mut(&one).unwrap().lanes.push(moved);
        let (release, stuck) = channel::<()>();
        driver.threads[0].post(Box::new(move |_| _ = stuck.recv()));
        driver.probe();
        assert!(driver.silence().is_none() && !driver.has_answered());
        assert!(matches!(driver.detach(one), Err(DriverError::NoAnswer(0))));
        let port = &driver.ports[&one];
        assert_eq!((port.lanes.len(), port.lanes[0].thread, port.queues.len()), (1, 0, 1), "{port:?}");
        assert!(matches!(driver.silence(), Some(DriverError::NoAnswer(0))));
        let _switch = attach(&mut driver, 3);
        assert_eq!(driver.ports[&three].lanes[0].thread, 1);
        driver.detach(three).unwrap();
        assert!(matches!(driver.stats(), Err(DriverError::NoAnswer(0))));
        drop(release);
        while driver.silence().is_some() || !driver.has_answered() {
            std::thread::yield_now();
        }
        driver.detach(one).unwrap();
    }

    #[test]
    fn a_driver_whose_threads_live_says_so_by_its_events() {
        let mut driver = Driver::start(&DriverSettings { threads: 3, ..DriverSettings::default() }).unwrap();
        for _ in 0..3 {
            driver.probe();
            driver.probe();
            while !driver.has_answered() {
                let wanted = rustix::event::PollFlags::IN;
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(driver.events_fd(), wanted)];
                rustix::event::poll(&mut fds, None).unwrap();
                assert!(driver.next_event().is_none());
            }
        }
    }
}
