//! Requests of families `ovs_meter` and `ovs_ct_limit`.

use super::answer::Answer;
use super::request::{Outcome, Request, unknown_command};
use super::state::State;
use crate::datapath::{Datapath, Meter};
use crate::family::{Band, CtLimitMessage, MeterMessage};
use crate::refusal::{Errno, Refusal};
use crate::uapi::{ct_limit, meter as uapi};

pub(super) fn serve(
    state: &State,
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
) -> Result<Outcome, Refusal> {
    let wanted = MeterMessage::decode(request.id.0, request.attrs.clone())?;
    state.expect(request.id)?;
    let answer = match request.command {
        uapi::FEATURES => features(datapath, request),
        uapi::SET => set(datapath, request, wanted)?,
        uapi::DEL => remove(datapath, request, &wanted)?,
        uapi::GET => get(datapath, request, &wanted)?,
        _ => return Err(unknown_command()),
    };
    Ok(Outcome::Object { answer: Answer::Meter(answer), command: request.command })
}

fn features(datapath: &dyn Datapath, request: &Request<'_>) -> MeterMessage {
    let features = datapath.meter_features(request.id);
    MeterMessage {
        datapath: request.id.0,
        meters_max: Some(features.meters_max),
        bands_max: Some(features.bands_max),
        // A list of bands states the supported kinds.
        bands: Some(vec![Band { kind: uapi::BAND_DROP, ..Band::default() }]),
        ..MeterMessage::default()
    }
}

fn expect_id(wanted: &MeterMessage) -> Result<u32, Refusal> {
    wanted.id.ok_or(Refusal::invalid("no number says which meter"))
}

/// Encodes a meter: OVS expects statistics of each band.
fn message(request: &Request<'_>, id: u32, meter: Option<Meter>) -> MeterMessage {
    let mut message = MeterMessage { datapath: request.id.0, id: Some(id), ..MeterMessage::default() };
    if let Some(meter) = meter {
        let with_stats = |band: Band| Band { stats: Some(band.stats.unwrap_or_default()), ..band };
        message.stats = Some(meter.stats);
        message.used_ms = Some(meter.used_ms);
        message.is_kbps = meter.is_kbps;
        message.bands = Some(meter.bands.into_iter().map(with_stats).collect());
    }
    message
}

fn set(
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
    wanted: MeterMessage,
) -> Result<MeterMessage, Refusal> {
    let id = expect_id(&wanted)?;
    let bands = wanted.bands.ok_or(Refusal::invalid("a meter needs bands"))?;
    if bands.iter().any(|band| band.kind != uapi::BAND_DROP) {
        return Err(Refusal::invalid("the only band known here drops packets"));
    }
    let meter = Meter { is_kbps: wanted.is_kbps, bands, ..Meter::default() };
    let before = datapath.meter_set(request.id, id, meter)?;
    Ok(message(request, id, before))
}

fn get(
    datapath: &dyn Datapath,
    request: &Request<'_>,
    wanted: &MeterMessage,
) -> Result<MeterMessage, Refusal> {
    let id = expect_id(wanted)?;
    let meter =
        datapath.meter(request.id, id).ok_or(Refusal::new(Errno::ENOENT, "there is no such meter"))?;
    Ok(message(request, id, Some(meter)))
}

/// Removes a meter. A missing one is no error: OVS removes meters that it did not make, to be sure.
fn remove(
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
    wanted: &MeterMessage,
) -> Result<MeterMessage, Refusal> {
    let id = expect_id(wanted)?;
    let last = datapath.meter_remove(request.id, id);
    Ok(message(request, id, last))
}

pub(super) fn serve_ct_limits(
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
) -> Result<Outcome, Refusal> {
    let wanted = CtLimitMessage::decode(request.id.0, request.attrs.clone())?;
    let limits = wanted.limits.as_deref();
    let expect = || limits.ok_or(Refusal::invalid("no limits are given"));
    match request.command {
        ct_limit::SET => datapath.ct_limits_set(expect()?)?,
        ct_limit::DEL => datapath.ct_limits_remove(expect()?)?,
        ct_limit::GET => {
            let limits = Some(datapath.ct_limits(limits)?);
            let answer = Answer::CtLimit(CtLimitMessage { datapath: request.id.0, limits });
            return Ok(Outcome::Object { answer, command: request.command });
        }
        _ => return Err(unknown_command()),
    }
    Ok(Outcome::Done)
}
