//! The driver process: device ports, each between a device and the switch.
//!
//! Its main thread serves the channel to the supervisor; the I/O threads move frames. The process opens nothing:
//! devices and connections to the switch come over the channel.

use lasthop_api::driver_orders::{DriverOrder, DriverReport};

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::{DevicePortId, Driver, DriverError, DriverEvent, DriverSettings};
use lasthop_device::DeviceFacts;
use lasthop_foreign::ForeignFd;

use lasthop_api::polling::{Hysteresis, PollCpus};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::ipc::{Channel, take_channel};
use lasthop_runtime::poller::{Interest, Poller};
use lasthop_runtime::sandbox::{self, KeptFds, ProcessRole};
use lasthop_runtime::{descriptors, signals};

/// The channel's and the events' numbers in the poller.
const CHANNEL: u64 = 0;
const EVENTS: u64 = 1;

/// Runs until the supervisor is gone.
pub fn run(polling: (Hysteresis, PollCpus), mode: sandbox::SandboxMode) -> Result<(), Fault> {
    // The supervisor handles signals to the process group.
    signals::ignore()?;
    descriptors::prepare_table();
    // Sets the name, since it was started as /proc/self/exe.
    let _ = rustix::thread::set_name(c"lasthop-driver");
    let mut channel = take_channel()?;
    let driver = match begin(polling, mode, &mut channel) {
        Ok(driver) => driver,
        Err(why) => {
            let _ = channel.send(&DriverReport::Failed { why }, None);
            // The supervisor reports it.
            std::process::exit(1);
        }
    };
    let poller = Poller::new()?;
    poller.add(&channel, CHANNEL, Interest::READ)?;
    poller.add(driver.events_fd(), EVENTS, Interest::READ)?;
    Process { channel, is_full: false, poller, driver, awaited: None }.serve()
}

/// Enters the sandbox, then starts the threads, which inherit it.
fn begin(
    (hysteresis, cpus): (Hysteresis, PollCpus),
    mode: sandbox::SandboxMode,
    channel: &mut Channel<DriverReport, DriverOrder>,
) -> Result<Driver, String> {
    let kept = KeptFds { channel: channel.as_fd() };
    let layers = sandbox::enter(ProcessRole::Driver, mode, &kept, DriverReport::Forbidden);
    let _ = channel.send(&DriverReport::Sandbox(layers.map_err(|fault| fault.message)?), None);
    let (hysteresis_us, polls_on_any_cpu) = (hysteresis.0, cpus.is_any());
    let settings = DriverSettings { hysteresis_us, polls_on_any_cpu, ..DriverSettings::default() };
    Driver::start(&settings).map_err(words)
}

struct Process {
    channel: Channel<DriverReport, DriverOrder>,
    /// The channel is full: also wait for room.
    is_full: bool,
    poller: Poller,
    driver: Driver,
    /// The question that is answered once all I/O threads have given a sign of life.
    awaited: Option<u64>,
}

impl Process {
    fn serve(&mut self) -> Result<(), Fault> {
        loop {
            for event in self.poller.wait(self.channel.due())? {
                match event.source {
                    EVENTS => self.tell_events(),
                    _ if !self.hear() => return Ok(()),
                    _ => {}
                }
            }
            self.watch_channel()?;
        }
    }

    /// Executes orders of the supervisor. Returns false when it is gone.
    fn hear(&mut self) -> bool {
        let is_open = self.channel.flush().is_ok() && self.channel.receive().unwrap_or(false);
        while let Some((order, fds)) = self.channel.take() {
            self.execute(order, fds);
            // The supervisor may have many more orders for us, and waits for signs of life meanwhile.
            self.tell_events();
            self.end_if_stuck();
        }
        is_open
    }

    fn execute(&mut self, order: DriverOrder, fds: Option<Vec<ForeignFd>>) {
        // The supervisor opened them.
        let fds = fds.map(|fds| fds.into_iter().map(ForeignFd::into_trusted).collect());
        let fds = fds.ok_or_else(no_descriptors);
        let (port, done) = match order {
            DriverOrder::Stats { round } => return self.tell_counters(round),
            DriverOrder::Live { round } => {
                self.awaited = Some(round);
                return self.driver.probe();
            }
            // The port may be gone already, which is the aim.
            DriverOrder::Detach { port } => (port, self.driver.detach(DevicePortId(port)).or(Ok(()))),
            DriverOrder::Attach { port, facts } => (port, self.attach(port, facts, fds)),
            DriverOrder::ReplaceDevice { port, facts } => {
                let replace = |fds| self.driver.replace_device(DevicePortId(port), facts, fds).map_err(words);
                (port, fds.and_then(replace))
            }
            DriverOrder::ReplaceSwitch { port } => {
                let replace =
                    |(_, switch)| self.driver.replace_switch(DevicePortId(port), switch).map_err(words);
                (port, fds.and_then(with_connection).and_then(replace))
            }
        };
        if let Err(why) = done {
            self.refuse(port, why);
        }
        if self.awaited.is_none() {
            self.tell(&DriverReport::Progress);
        }
    }

    /// Ends the process if an I/O thread is stuck: no order gets its queues back, and the next process has none of them.
    fn end_if_stuck(&mut self) {
        if let Some(error) = self.driver.silence() {
            self.tell(&DriverReport::Failed { why: words(error) });
            // Without the driver's end, which waits for its threads.
            std::process::exit(1);
        }
    }

    fn attach(
        &mut self,
        port: u32,
        facts: DeviceFacts,
        fds: Result<Vec<OwnedFd>, String>,
    ) -> Result<(), String> {
        let (device, switch) = fds.and_then(with_connection)?;
        self.driver.attach(DevicePortId(port), facts, device, switch).map_err(words)
    }

    /// Removes a port whose order failed: the supervisor starts over.
    fn refuse(&mut self, port: u32, why: String) {
        let _ = self.driver.detach(DevicePortId(port));
        self.tell(&DriverReport::Refused { port, why });
    }

    fn tell_counters(&mut self, round: u64) {
        let ports = self.driver.stats().map(|stats| stats.ports).unwrap_or_default();
        let ports = ports.into_iter().map(|port| (port.port.0, port.counters)).collect();
        self.tell(&DriverReport::Stats { round, ports });
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.driver.next_event() {
            self.tell(&match event {
                DriverEvent::DeviceGone { port, why } => DriverReport::DeviceGone { port: port.0, why },
                DriverEvent::RingStopped { port, why } => DriverReport::RingStopped { port: port.0, why },
                DriverEvent::SwitchGone { port, why } => DriverReport::SwitchGone { port: port.0, why },
            });
        }
        if self.driver.has_answered()
            && let Some(round) = self.awaited.take()
        {
            self.tell(&DriverReport::Alive { round });
        }
    }

    fn tell(&mut self, report: &DriverReport) {
        // If the supervisor is gone, the next read shows it.
        let _ = self.channel.send(report, None);
    }

    fn watch_channel(&mut self) -> Result<(), Fault> {
        let _ = self.channel.flush(); // if the other side is gone, reading says so
        let interest = self.channel.interest();
        if interest.write != self.is_full {
            self.poller.modify(&self.channel, CHANNEL, interest)?;
            self.is_full = interest.write;
        }
        Ok(())
    }
}

/// Separates a device's descriptors from the connection, which comes last.
fn with_connection(mut fds: Vec<OwnedFd>) -> Result<(Vec<OwnedFd>, UnixStream), String> {
    let connection = fds.pop().ok_or_else(no_descriptors)?;
    Ok((fds, UnixStream::from(connection)))
}

fn no_descriptors() -> String {
    "the driver process has no file descriptors left for it; raise the limit (ulimit -n, LimitNOFILE=)"
        .to_owned()
}

fn words(error: DriverError) -> String {
    error.to_string()
}
