//! A profile as a picture: a bar for each port, stacked by stage.

use lasthop_chart::{Anchor, Canvas, Font, colour};

use lasthop_api::profile::{ProfileReport, ProfiledPort};

const WIDTH_PX: f64 = 980.0;
const MARGIN_PX: f64 = 34.0;
/// Widths for the ports' names before the bars, and for the numbers after them.
const NAME_PX: f64 = 150.0;
const NUMBER_PX: f64 = 90.0;
const BAR_PX: f64 = 22.0;
const PITCH_PX: f64 = 34.0;
/// Number of bars, those with most packets; more would not be readable.
const BARS_MAX: usize = 24;
const LEGEND_PITCH_PX: f64 = 20.0;
const SIGN_PX: f64 = 18.0;

const TITLE: Font = Font::new(22.0, colour::INK).bold();
const SMALL: Font = Font::new(12.0, colour::FAINT);
const LABEL: Font = Font::new(13.0, colour::INK);

/// Colours of neighbouring stages differ in hue and lightness.
const FILLS: [&str; 12] = [
    "#8c510a", "#1769d2", "#93bbee", "#5e3c99", "#b2abd2", "#d95f02", "#fdb863", "#1b7837", "#a6dba0",
    "#4d4d4d", "#c2c9d2", "#8e99a6",
];

/// The picture.
pub(crate) fn profile_svg(report: &ProfileReport) -> String {
    let mut canvas = Canvas::default();
    canvas.text((MARGIN_PX, 52.0), Anchor::Start, TITLE, "Cycles for a packet, by stage");
    let head = format!("{:.1} s, one round of {} sampled, by sending port", report.seconds, report.every);
    canvas.text((MARGIN_PX, 74.0), Anchor::Start, SMALL, &head);
    let mut ports: Vec<&ProfiledPort> = report.ports.iter().filter(|port| port.sampled_packets > 0).collect();
    ports.sort_by_key(|port| std::cmp::Reverse(port.sampled_packets));
    ports.truncate(BARS_MAX);
    let mut y = legend(&mut canvas, &ports, 102.0);
    let most = ports.iter().map(|port| all(port)).fold(0.0, f64::max);
    if ports.is_empty() {
        canvas.text((MARGIN_PX, y + 16.0), Anchor::Start, LABEL, "No packets in the sampled rounds.");
        y += PITCH_PX;
    }
    for port in &ports {
        bar(&mut canvas, port, y, most);
        y += PITCH_PX;
    }
    canvas.finish((WIDTH_PX, y + MARGIN_PX), "Cycles for a packet, by stage")
}

/// Cycles of one packet.
fn all(port: &ProfiledPort) -> f64 {
    port.cycles.iter().map(|cost| cost.cycles).sum::<u64>() as f64 / port.sampled_packets as f64
}

fn bar(canvas: &mut Canvas, port: &ProfiledPort, y: f64, most: f64) {
    let room = WIDTH_PX - 2.0 * MARGIN_PX - NAME_PX - NUMBER_PX;
    let base = y + 0.72 * BAR_PX;
    let name = LABEL.cut(&format!("{} (worker {})", port.port, port.worker), NAME_PX - 8.0);
    canvas.text((MARGIN_PX, base), Anchor::Start, LABEL, &name);
    let mut x = MARGIN_PX + NAME_PX;
    for (stage, cost) in port.cycles.iter().enumerate().filter(|(_, cost)| cost.cycles > 0) {
        let each = cost.cycles as f64 / port.sampled_packets as f64;
        let width = each / most * room;
        let title = format!("{}: {each:.1} cycles", cost.stage);
        canvas.group(&title, |canvas| canvas.bar((x, y), (width, BAR_PX), fill(stage)));
        x += width;
    }
    canvas.text((x + 8.0, base), Anchor::Start, LABEL, &format!("{:.0}", all(port)));
}

fn fill(stage: usize) -> &'static str {
    FILLS[stage % FILLS.len()]
}

/// The stages that take time at any port; returns where the bars start.
fn legend(canvas: &mut Canvas, ports: &[&ProfiledPort], mut y: f64) -> f64 {
    let mut x = MARGIN_PX;
    let stages = ports.first().map_or(&[][..], |port| &port.cycles);
    for (stage, cost) in stages.iter().enumerate() {
        if ports.iter().all(|port| port.cycles.get(stage).is_none_or(|cost| cost.cycles == 0)) {
            continue;
        }
        let width = SIGN_PX + LABEL.width_px(&cost.stage) + SIGN_PX;
        if x + width > WIDTH_PX - MARGIN_PX {
            (x, y) = (MARGIN_PX, y + LEGEND_PITCH_PX);
        }
        canvas.bar((x, y - 10.0), (12.0, 12.0), fill(stage));
        canvas.text((x + SIGN_PX, y), Anchor::Start, LABEL, &cost.stage);
        x += width;
    }
    y + LEGEND_PITCH_PX
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::report;
    use super::*;

    #[test]
    fn each_port_has_a_bar_as_long_as_its_packets_are_dear() {
        let svg = profile_svg(&report());
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("copy: 30.0 cycles") && svg.contains("fetch: 6.0 cycles"), "{svg}");
        assert!(!svg.contains("signal"), "a stage that took no time");
        let longest = WIDTH_PX - 2.0 * MARGIN_PX - NAME_PX - NUMBER_PX;
        assert!(svg.contains(&format!("width=\"{:.1}\"", longest * 0.75)), "3000 of 4000 cycles: {svg}");
    }

    #[test]
    fn nothing_sampled_is_a_picture_that_says_so() {
        assert!(profile_svg(&ProfileReport::default()).contains("No packets"));
    }
}
