//! Lines of prose for a terminal: those that are too long go on below their text.

use crate::output::{Screen, screen};

/// Programs whose command lines are to be pasted, so that a line never ends within one.
const PROGRAMS: &[&str] = &[
    "chgrp",
    "chmod",
    "ethtool",
    "ip",
    "journalctl",
    "kill",
    "lasthop",
    "modprobe",
    "sudo",
    "systemctl",
    "tc",
    "ulimit",
];
/// Beginning of the names of Open vSwitch's and OVN's programs.
const PROGRAM_STARTS: &[&str] = &["ovs-", "ovn-"];
/// Words of prose that end a command.
const WORDS_AFTER: &[&str] =
    &["and", "for", "has", "lists", "looks", "or", "prints", "shows", "tells", "with"];
/// Between the links of a chain: such a line goes on at one of these.
const LINK: &str = " - ";
/// A key or a state, with the spaces behind it, ends within this many columns.
const LEAD_MAX: usize = 24;
/// Indent of the next lines of a text without a key.
const INDENT: usize = 2;
/// Begins a text that is indented by its length, too.
const REMEDY: &str = "remedy: ";

/// `text` for standard output: as it is, or folded to the width of its terminal.
pub(crate) fn for_screen(text: &str) -> String {
    screen().map_or_else(|| text.to_owned(), |screen| folded(text, screen.columns))
}

/// Same for lines whose texts begin in this column, behind keys of single bytes.
pub(super) fn keys_for_screen(text: &str, column: usize) -> String {
    let fold = |screen: Screen| each_line(text, |line| folded_line(line, screen.columns, column));
    screen().map_or_else(|| text.to_owned(), fold)
}

/// `text` with lines of at most `columns`, as far as words and commands are no longer.
pub(crate) fn folded(text: &str, columns: usize) -> String {
    each_line(text, |line| folded_line(line, columns, lead(line)))
}

fn each_line(text: &str, fold: impl Fn(&str) -> String) -> String {
    let line = |line: &str| match line.strip_suffix('\n') {
        Some(line) => fold(line) + "\n",
        None => fold(line),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// `lead` is the number of bytes before the text.
fn folded_line(line: &str, columns: usize, lead: usize) -> String {
    if width(line) <= columns {
        return line.to_owned();
    }
    let Some((lead, words)) = line.split_at_checked(lead) else { return line.to_owned() };
    let indent = match (lead.is_empty(), words.starts_with(REMEDY)) {
        (true, _) => INDENT,
        (false, is_remedy) => width(lead) + if is_remedy { REMEDY.len() } else { 0 },
    };
    let (mut text, mut column, mut is_first) = (lead.to_owned(), width(lead), true);
    for piece in pieces(words) {
        if !is_first && column + 1 + width(&piece) > columns {
            text.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if !is_first {
            text.push(' ');
            column += 1;
        }
        text.push_str(&piece);
        column += width(&piece);
        is_first = false;
    }
    text
}

/// Number of bytes before the text of a line: a key and spaces, or nothing.
fn lead(line: &str) -> usize {
    let is_lead = |end: &usize| line.is_char_boundary(*end) && line[..*end].ends_with("  ");
    let Some(end) = (1..=LEAD_MAX.min(line.len())).rev().find(is_lead) else { return 0 };
    end
}

/// The parts of a text that stay in one line.
fn pieces(text: &str) -> Vec<String> {
    if text.matches(LINK).count() > 1 {
        let links = text.split(LINK).enumerate();
        return links.map(|(number, link)| format!("{}{link}", if number > 0 { "- " } else { "" })).collect();
    }
    let mut pieces: Vec<String> = Vec::new();
    let mut command = Command::default();
    for word in text.split(' ') {
        let is_part = command.takes(word);
        match pieces.last_mut().filter(|_| is_part) {
            Some(last) => last.extend([" ", word]),
            None => pieces.push(word.to_owned()),
        }
    }
    pieces
}

/// The command to which the words up to now belong.
#[derive(Default)]
struct Command {
    is_open: bool,
    is_quoted: bool,
    /// The word is an option, and the next one may be its value.
    is_option: bool,
}

impl Command {
    /// Whether a word goes into the line of the word before it.
    fn takes(&mut self, word: &str) -> bool {
        let is_option = word.starts_with('-') && word.len() > 1;
        let is_other = !self.is_quoted && (word.starts_with('(') || WORDS_AFTER.contains(&word));
        let is_part = (self.is_open || self.is_option) && !is_other || is_option;
        let bare = word.trim_start_matches('(');
        if !is_part {
            self.is_open = is_program(bare);
        }
        if bare.starts_with('\'') || bare.contains("='") {
            self.is_quoted = true;
        }
        let end = word.trim_end_matches([';', ',', ':', ')', '.']);
        if end.ends_with('\'') {
            self.is_quoted = false;
        }
        let is_over = end != word && !word.ends_with("...") && !self.is_quoted;
        self.is_open &= !is_over;
        self.is_option = is_option && !is_over;
        is_part
    }
}

/// Whether a command may begin with this word, which then has no comma or the like behind it.
fn is_program(word: &str) -> bool {
    PROGRAMS.contains(&word) || PROGRAM_STARTS.iter().any(|start| word.starts_with(start))
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_goes_on_below_its_text() {
        let text = "not ok: vm2 memory: the guest's memory is not shared\n  ok       host         31 of 20000 \
                    file descriptors in use\nshort\n";
        let expected = "not ok: vm2 memory: the guest's memory is\n  not shared\n\
                        \x20 ok       host         31 of 20000 file\n                        descriptors in use\nshort\n";
        assert_eq!(folded(text, 42), expected);
        assert_eq!(folded(text, 200), text);
        assert_eq!(
            folded("negotiated    CSUM GUEST_CSUM MQ", 24),
            "negotiated    CSUM\n              GUEST_CSUM\n              MQ"
        );
    }

    #[test]
    fn a_chain_goes_on_at_a_link() {
        let text = "vm1: socket ok - peer NOT OK - rings ? - drops ?\n";
        assert_eq!(folded(text, 30), "vm1: socket ok - peer NOT OK\n  - rings ? - drops ?\n");
    }

    #[test]
    fn a_command_stays_in_one_line() {
        for (text, command) in [
            ("  remedy: restart it: systemctl restart lasthop (guests stay)", "systemctl restart lasthop"),
            (
                "  remedy: start one: lasthop --dir /a/b run --vnic vm1; or not",
                "lasthop --dir /a/b run --vnic vm1;",
            ),
            (
                "  remedy: lasthop port del a && lasthop port add a,vlan=1",
                "lasthop port del a && lasthop port add a,vlan=1",
            ),
            (
                "  remedy: start QEMU -object m,id=mem,share=on -machine b=mem; ...",
                "QEMU -object m,id=mem,share=on -machine b=mem;",
            ),
            (
                "  remedy: then lasthop stats 'a; b' --watch shows the losses of it",
                "lasthop stats 'a; b' --watch",
            ),
            ("  remedy: try (kill -CONT 4711) or wait for the supervisor", "(kill -CONT 4711)"),
            (
                "  remedy: see: ovs-vsctl set port vm2 tag=10, and the others",
                "ovs-vsctl set port vm2 tag=10,",
            ),
            (
                "  remedy: set it: lasthop port set vm1 addresses=fe80::1 vm2",
                "lasthop port set vm1 addresses=fe80::1 vm2",
            ),
        ] {
            let text = folded(text, 30);
            assert!(text.lines().any(|line| line.contains(command)), "{text}");
            assert!(text.lines().count() > 1, "{text}");
            let alone = text.lines().filter(|line| !line.contains(command));
            assert!(alone.clone().all(|line| line.chars().count() <= 30), "{text}");
        }
        assert_eq!(
            folded("lasthop port show vm1 --qemu (or others)", 20),
            "lasthop port show vm1 --qemu\n  (or others)"
        );
        assert_eq!(
            folded("  remedy: see the log of it; or: ip link set eth0 up", 30),
            "  remedy: see the log of it;\n          or:\n          ip link set eth0 up"
        );
    }
}
