//! Models of machines: topology and costs, from TOML files. Each parameter has its unit in its name, and its source in a
//! comment of the file.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lasthop_sched::{CpuDistance, CpuPlace};
use serde::Deserialize;

use crate::nic::SLOTS;

/// CPUs of a model: more than any server that the lab is about, and few enough for tables by CPU.
pub(crate) const CPUS_MAX: u16 = 256;
/// The longest single cost: a second. Sums of costs stay far below the range of the clock.
const COST_NS_MAX: u64 = 1_000_000_000;
/// Bytes of a model file.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Models that need no file.
const BUILT_IN: [(&str, &str); 3] = [
    ("two-cpus", include_str!("../models/two-cpus.toml")),
    ("opteron", include_str!("../models/opteron.toml")),
    ("epyc", include_str!("../models/epyc.toml")),
];

/// A machine and the costs on it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) topology: Topology,
    pub(crate) cpu: CpuCosts,
    pub(crate) guest: GuestCosts,
    /// The switch copies: ps for each byte, by the distance of the copying CPU from the sender's.
    pub(crate) copy: ByDistance,
    /// A receiving application reads: ps for each byte, by the distance of its CPU from the one that copied.
    pub(crate) read: ByDistance,
    pub(crate) cut: CutCosts,
    pub(crate) lasthop: SwitchCosts,
    pub(crate) hyper_switch: SwitchCosts,
    pub(crate) xen: SwitchCosts,
    pub(crate) kvm: SwitchCosts,
    /// Values that were measured on the machine, for `validate`.
    #[serde(default)]
    pub(crate) measured: Vec<Measured>,
}

/// A measured value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    pub(crate) workload: String,
    /// Millions of packets for each second, Gbit/s of frames, or us of a round trip.
    pub(crate) value: f64,
    pub(crate) unit: MeasuredUnit,
    /// Whether costs of the model were taken from this value, so that it proves nothing.
    pub(crate) calibrates: bool,
}

/// The unit of a measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MeasuredUnit {
    Mpps,
    GbitPerS,
    RoundTripUs,
}

/// CPUs and what they share. CPU numbers go through groups, LLCs and nodes in turn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Topology {
    pub(crate) cpus: u16,
    pub(crate) cpus_per_group: u16,
    pub(crate) cpus_per_llc: u16,
    pub(crate) cpus_per_node: u16,
}

/// Costs of CPUs and of their scheduler.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CpuCosts {
    pub(crate) mhz: u64,
    pub(crate) context_switch_ns: u64,
    /// From the order to wake a thread on an idle CPU until it runs.
    pub(crate) wake_ns: u64,
    /// The order itself, at the CPU that gives it.
    pub(crate) ipi_ns: u64,
    /// From a change in memory until a thread on another CPU that polls sees it.
    pub(crate) poll_ns: u64,
    /// A thread that others wait for loses its CPU after this time.
    pub(crate) slice_ns: u64,
    /// How much longer work takes while the other CPU of the group works.
    pub(crate) group_shared_percent: u64,
    /// Bytes that all CPUs of a node together can read or write in a us.
    pub(crate) node_bytes_per_us: u64,
    /// Bytes of a sender's and a receiver's buffers together that a copy finds in caches.
    pub(crate) cache_bytes: u64,
    /// The cost of each byte if they are more, in percent.
    pub(crate) beyond_cache_percent: u64,
}

/// Costs of a guest's network stack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuestCosts {
    pub(crate) send_ns: u64,
    /// Bytes that the sending application copies into the kernel: 0 with sendfile.
    pub(crate) send_ps_per_byte: u64,
    pub(crate) receive_ns: u64,
    /// A segment of a cut frame, received and merged with those before it (Linux: GRO). Each frame costs `receive_ns`, too.
    pub(crate) segment_ns: u64,
    /// An acknowledgement, sent or received.
    pub(crate) ack_ns: u64,
    /// Application work and system calls for a request or a response.
    pub(crate) turn_ns: u64,
}

/// Costs of the product for receivers without offloads, beyond those of a whole frame.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CutCosts {
    /// A segment: its headers, its checksum, its buffer and its used entry.
    pub(crate) segment_ns: u64,
    /// The same, if two CPUs fill the ring by turns: what descriptors and used entries cost more, and waiting for the claim.
    pub(crate) shared_segment_ns: u64,
    /// A byte of a frame that is not cut, whose checksum is completed while it is copied.
    pub(crate) checksum_ps_per_byte: u64,
}

/// Costs of one architecture of a switch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SwitchCosts {
    /// A sender's order to look at its ring: eventfd, exit or hypercall.
    pub(crate) kick_ns: u64,
    /// Each look at a ring that finds packets.
    pub(crate) visit_ns: u64,
    /// A packet is taken and its destination found.
    pub(crate) packet_ns: u64,
    /// Each 4 KiB page of it, where the sender's memory has to be mapped first.
    pub(crate) page_ns: u64,
    /// Whether the packet is copied out of the sender's memory, before the copy for the receiver.
    pub(crate) copies_out: bool,
    /// The copy for the receiver is begun and finished.
    pub(crate) copy_packet_ns: u64,
    /// Each 4 KiB page of it, where the receiver's memory has to be mapped first.
    pub(crate) copy_page_ns: u64,
    /// A signal, at the one that sends it.
    pub(crate) signal_ns: u64,
    /// A signal, at the guest that is interrupted.
    pub(crate) interrupt_ns: u64,
    /// How long a thread without work polls before it sleeps; where a policy decides, at most.
    pub(crate) poll_max_ns: u64,
}

/// A cost for each byte in ps, by distance.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ByDistance {
    pub(crate) same_ps_per_byte: u64,
    pub(crate) group_ps_per_byte: u64,
    pub(crate) llc_ps_per_byte: u64,
    pub(crate) node_ps_per_byte: u64,
    pub(crate) far_ps_per_byte: u64,
}

impl ByDistance {
    /// The cost of `bytes` in ns.
    pub(crate) fn ns(&self, distance: CpuDistance, bytes: u64) -> u64 {
        let ps = match distance {
            CpuDistance::Same => self.same_ps_per_byte,
            CpuDistance::Group => self.group_ps_per_byte,
            CpuDistance::Llc => self.llc_ps_per_byte,
            CpuDistance::Node => self.node_ps_per_byte,
            CpuDistance::Far => self.far_ps_per_byte,
        };
        bytes * ps / 1000
    }

    fn all(&self) -> [u64; 5] {
        let Self { same_ps_per_byte, group_ps_per_byte, llc_ps_per_byte, node_ps_per_byte, far_ps_per_byte } =
            *self;
        [same_ps_per_byte, group_ps_per_byte, llc_ps_per_byte, node_ps_per_byte, far_ps_per_byte]
    }

    fn scale(&mut self, percent: u64) {
        let Self { same_ps_per_byte, group_ps_per_byte, llc_ps_per_byte, node_ps_per_byte, far_ps_per_byte } =
            self;
        for ps in [same_ps_per_byte, group_ps_per_byte, llc_ps_per_byte, node_ps_per_byte, far_ps_per_byte] {
            *ps = *ps * percent / 100;
        }
    }
}

/// Groups of parameters that are varied together, to show how much a result depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knob {
    /// All costs of copying and reading bytes, and the bandwidth of nodes.
    Bytes,
    /// All costs of wake-ups, signals, interrupts and kicks.
    Wakeups,
    /// All costs of guests' network stacks.
    Stacks,
    /// All costs of a packet in a switch.
    Packets,
}

impl Knob {
    /// All of them, with their names.
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Bytes, "bytes"),
        (Self::Wakeups, "wake-ups"),
        (Self::Stacks, "stacks"),
        (Self::Packets, "packets"),
    ];
}

impl Model {
    /// The model of a built-in name or of a file.
    ///
    /// # Errors
    /// With the file's name, the parameter and the remedy.
    pub(crate) fn load(name: &str) -> Result<Self> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Self::parse(text).with_context(|| format!("built-in model {name}"));
        }
        let path = Path::new(name);
        let names = BUILT_IN.map(|(name, _)| name).join(", ");
        let size = path.metadata().with_context(|| {
            format!("there is no model \"{name}\"; name a file in TOML, or one of {names}")
        })?;
        ensure!(
            size.is_file() && size.len() <= FILE_BYTES_MAX,
            "model \"{name}\" is not a file of at most {FILE_BYTES_MAX} bytes; name a model file"
        );
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read model \"{name}\""))?;
        Self::parse(&text).with_context(|| format!("model \"{name}\""))
    }

    fn parse(text: &str) -> Result<Self> {
        let model: Self = toml::from_str(text)?;
        model.check()?;
        Ok(model)
    }

    fn check(&self) -> Result<()> {
        let Topology { cpus, cpus_per_group, cpus_per_llc, cpus_per_node } = self.topology;
        ensure!((2..=CPUS_MAX).contains(&cpus), "topology.cpus is {cpus}; choose 2 to {CPUS_MAX}");
        for (name, part, whole) in [
            ("cpus_per_group", cpus_per_group, cpus_per_llc),
            ("cpus_per_llc", cpus_per_llc, cpus_per_node),
            ("cpus_per_node", cpus_per_node, cpus),
        ] {
            if part == 0 || whole % part != 0 {
                bail!(
                    "topology.{name} is {part}; choose a divisor of {whole}, the CPUs of the next larger part"
                );
            }
        }
        ensure!(
            self.cpu.mhz > 0 && self.cpu.node_bytes_per_us > 0 && self.cpu.slice_ns > 0,
            "cpu.mhz, cpu.node_bytes_per_us and cpu.slice_ns must be above 0"
        );
        let bytes = self.copy.all().into_iter().chain(self.read.all()).chain([self.guest.send_ps_per_byte]);
        let greatest = self.costs_ns().into_iter().chain(bytes).max().unwrap_or(0);
        ensure!(
            greatest <= COST_NS_MAX,
            "a cost is {greatest}; choose at most {COST_NS_MAX} ns, or ps per byte"
        );
        Ok(())
    }

    fn costs_ns(&self) -> Vec<u64> {
        let CpuCosts { context_switch_ns, wake_ns, ipi_ns, poll_ns, slice_ns, group_shared_percent, .. } =
            self.cpu;
        let beyond_cache_percent = self.cpu.beyond_cache_percent;
        let GuestCosts { send_ns, receive_ns, segment_ns, ack_ns, turn_ns, .. } = self.guest;
        let mut costs = vec![
            context_switch_ns,
            wake_ns,
            ipi_ns,
            poll_ns,
            slice_ns,
            group_shared_percent,
            beyond_cache_percent,
        ];
        costs.extend([send_ns, receive_ns, segment_ns, ack_ns, turn_ns]);
        costs.extend([self.cut.segment_ns, self.cut.shared_segment_ns]);
        for switch in [&self.lasthop, &self.hyper_switch, &self.xen, &self.kvm] {
            costs.extend([
                switch.kick_ns,
                switch.visit_ns,
                switch.packet_ns,
                switch.page_ns,
                switch.copy_packet_ns,
            ]);
            costs.extend([switch.copy_page_ns, switch.signal_ns, switch.interrupt_ns, switch.poll_max_ns]);
        }
        costs
    }

    /// The model with a group of costs at `percent` of the stated ones.
    pub(crate) fn varied(&self, knob: Knob, percent: u64) -> Self {
        let mut model = self.clone();
        let scale =
            |costs: &mut [&mut u64]| costs.iter_mut().for_each(|cost| **cost = **cost * percent / 100);
        let CpuCosts { context_switch_ns, wake_ns, ipi_ns, .. } = &mut model.cpu;
        let GuestCosts { send_ns, receive_ns, segment_ns, ack_ns, turn_ns, .. } = &mut model.guest;
        let CutCosts { segment_ns: cut_ns, shared_segment_ns, checksum_ps_per_byte } = &mut model.cut;
        match knob {
            Knob::Bytes => {
                model.copy.scale(percent);
                model.read.scale(percent);
                scale(&mut [checksum_ps_per_byte]);
                model.cpu.node_bytes_per_us = model.cpu.node_bytes_per_us * 100 / percent;
            }
            Knob::Wakeups => scale(&mut [context_switch_ns, wake_ns, ipi_ns]),
            Knob::Stacks => scale(&mut [send_ns, receive_ns, segment_ns, ack_ns, turn_ns]),
            Knob::Packets => scale(&mut [cut_ns, shared_segment_ns]),
        }
        for switch in [&mut model.lasthop, &mut model.hyper_switch, &mut model.xen, &mut model.kvm] {
            match knob {
                Knob::Wakeups => {
                    scale(&mut [&mut switch.kick_ns, &mut switch.signal_ns, &mut switch.interrupt_ns]);
                }
                Knob::Packets => {
                    scale(&mut [&mut switch.visit_ns, &mut switch.packet_ns, &mut switch.page_ns]);
                    scale(&mut [&mut switch.copy_packet_ns, &mut switch.copy_page_ns]);
                }
                Knob::Bytes | Knob::Stacks => {}
            }
        }
        model
    }

    /// The cost of copying a frame of `bytes` once, in ns. All buffers of both rings are used in turn.
    pub(crate) fn copy_ns(&self, distance: CpuDistance, bytes: u64) -> u64 {
        let is_beyond = 2 * u64::from(SLOTS) * bytes > self.cpu.cache_bytes;
        let percent = if is_beyond { self.cpu.beyond_cache_percent } else { 100 };
        self.copy.ns(distance, bytes) * percent / 100
    }

    /// The further cost of a frame that is cut into `packets`, in ns; `is_shared`: beside another CPU that fills the same ring.
    pub(crate) fn cut_ns(&self, packets: u32, is_shared: bool) -> u64 {
        let CutCosts { segment_ns, shared_segment_ns, .. } = self.cut;
        let each_ns = segment_ns + u64::from(is_shared) * shared_segment_ns;
        u64::from(packets > 1) * u64::from(packets) * each_ns
    }

    /// The further cost of completing the checksum of `bytes`, in ns.
    pub(crate) fn sum_ns(&self, bytes: u32) -> u64 {
        u64::from(bytes) * self.cut.checksum_ps_per_byte / 1000
    }

    /// The place of each CPU.
    pub(crate) fn places(&self) -> Vec<CpuPlace> {
        let Topology { cpus, cpus_per_group, cpus_per_llc, cpus_per_node } = self.topology;
        let place = |cpu| CpuPlace {
            group: cpu / cpus_per_group,
            llc: cpu / cpus_per_llc,
            node: cpu / cpus_per_node,
        };
        (0..cpus).map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_models_are_complete() {
        for (name, _) in BUILT_IN {
            let model = Model::load(name).unwrap();
            assert_eq!(model.name, name);
            assert_eq!(model.places().len(), usize::from(model.topology.cpus));
        }
    }

    #[test]
    fn errors_name_the_thing_and_the_remedy() {
        let missing = format!("{:#}", Model::load("no-such-model").unwrap_err());
        assert!(missing.contains("\"no-such-model\"") && missing.contains("opteron"), "{missing}");
        let text = BUILT_IN[1].1;
        for (from, to, words) in [
            (
                "cpus_per_group = 2",
                "cpus_per_group = 3",
                "topology.cpus_per_group is 3; choose a divisor of 8",
            ),
            ("cpus = 32", "cpus = 1000", "topology.cpus is 1000; choose 2 to 256"),
            ("mhz = 2200", "mhz = 0", "cpu.mhz"),
            ("mhz = 2200", "hertz = 2200", "unknown field `hertz`"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = format!("{:#}", Model::parse(&text.replace(from, to)).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_knob_turns_its_own_costs_only() {
        let model = Model::load("opteron").unwrap();
        let slow = model.varied(Knob::Bytes, 200);
        assert_eq!(slow.copy.far_ps_per_byte, 2 * model.copy.far_ps_per_byte);
        assert_eq!(slow.costs_ns(), model.costs_ns());
        assert_eq!(model.varied(Knob::Wakeups, 50).cpu.wake_ns, model.cpu.wake_ns / 2);
        assert_eq!(model.varied(Knob::Packets, 100).costs_ns(), model.costs_ns());
    }
}
