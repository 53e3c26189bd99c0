//! `lasthop explain`: shows the decisions on a packet, without sending it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use lasthop_module_api::Mac;
use serde_json::json;

use crate::packet::{self, WrittenFrame};
use crate::show;
use lasthop_api::explain::{EXPLAINED_BYTES_MAX, ExplainFate, ExplainReport, ExplainSpec, hex_of};
use lasthop_api::port::Name;
use lasthop_api::report::PortStatus;
use lasthop_runtime::fault::Fault;

use super::ask::ApiRequest;
use super::client::ask;

/// Exit status of a packet that is dropped.
const DROPPED: u8 = 3;
/// Exit status of a packet that the control plane decides about, or that waits for its other fragments.
const OPEN: u8 = 4;

/// The packet and its input port.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The port that receives the packet
    #[arg(long, value_name = "NAME")]
    from: Name,
    /// The packet: fields in Open vSwitch's words, or hexadecimal bytes of a frame from the destination address on
    #[arg(value_name = "PACKET", required_unless_present = "file", conflicts_with = "file")]
    packet: Option<String>,
    /// Take the packet from this capture file, pcap or pcapng
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// With --file: the number of the packet, from 1 on [default: 1]
    #[arg(long, value_name = "N", requires = "file")]
    packet_number: Option<usize>,
    /// Bytes of the whole frame [default: those that are given]
    #[arg(long, value_name = "BYTES")]
    length: Option<u32>,
}

impl ApiRequest {
    /// The exit status tells the packet's end.
    pub(super) fn explain(&self, args: &ExplainArgs) -> Result<ExitCode, Fault> {
        let from = args.from.as_str();
        let WrittenFrame { bytes, len_bytes } = match (&args.file, &args.packet) {
            (Some(file), _) => packet::read_file(file, args.packet_number.unwrap_or(1))?,
            (None, text) => packet::written(text.as_deref().unwrap_or_default(), || self.mac_of(from))?,
        };
        let head = bytes.get(..EXPLAINED_BYTES_MAX).unwrap_or(&bytes);
        let frame_bytes = Some(args.length.unwrap_or(len_bytes));
        let spec = ExplainSpec { from: from.to_owned(), frame: hex_of(head), frame_bytes };
        let report: ExplainReport = ask(&self.dir, "explain", &spec)?;
        self.show(&report, show::explanation)?;
        Ok(match report.fate {
            ExplainFate::Delivered => ExitCode::SUCCESS,
            ExplainFate::Dropped => ExitCode::from(DROPPED),
            ExplainFate::Asked | ExplainFate::Held => ExitCode::from(OPEN),
        })
    }

    /// The address of a port's guest, for packets that name no source.
    fn mac_of(&self, port: &str) -> Result<Mac, Fault> {
        let status: PortStatus = ask(&self.dir, "port.show", &json!({"name": port}))?;
        let own = status.settings.common.policy.mac.or(status.attachment().map(|guest| guest.mac));
        let missing = || {
            Fault::params(format!(
                "the address of \"{port}\" is not known; name the packet's source: dl_src=02:00:00:00:00:01"
            ))
        };
        own.ok_or_else(missing)
    }
}
