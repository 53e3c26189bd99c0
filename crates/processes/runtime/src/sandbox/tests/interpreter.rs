//! Interprets a filter independently of the kernel: runs its instructions on one call (linux/filter.h,
//! linux/seccomp.h).

use seccompiler::BpfProgram;

/// A call as a filter sees it: number, architecture, address, arguments.
pub(super) struct Data {
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
}

/// The answer of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Allow,
    Fail(u32),
    Trap,
    End,
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const MACHINE: u32 = 0xc000_00b7;

/// The answer to a call of this architecture.
pub(super) fn run(program: &BpfProgram, data: &Data) -> Answer {
    run_on(program, data, MACHINE)
}

/// The answer to a call of any architecture.
pub(super) fn run_on(program: &BpfProgram, data: &Data, machine: u32) -> Answer {
    let (mut next, mut value) = (0, 0);
    loop {
        let instruction = &program[next];
        let k = instruction.k;
        next += 1;
        let jump = |is: bool| usize::from(if is { instruction.jt } else { instruction.jf });
        match u32::from(instruction.code) {
            0x20 => value = word(data, machine, k),
            0x54 => value &= k,
            0x05 => next += k as usize,
            0x15 => next += jump(value == k),
            0x25 => next += jump(value > k),
            0x35 => next += jump(value >= k),
            0x06 => return answer(k),
            code => panic!("instruction {code:#x}"),
        }
    }
}

fn word(data: &Data, machine: u32, offset: u32) -> u32 {
    let argument = |index: u32| data.arguments[index as usize];
    match offset {
        0 => data.number as u32,
        4 => machine,
        offset if offset >= 16 && offset % 8 == 0 => argument((offset - 16) / 8) as u32,
        offset if offset >= 16 => (argument((offset - 16) / 8) >> 32) as u32,
        offset => panic!("the filter reads at {offset}"),
    }
}

fn answer(value: u32) -> Answer {
    match value & 0xffff_0000 {
        0x7fff_0000 => Answer::Allow,
        0x0005_0000 => Answer::Fail(value & 0xffff),
        0x0003_0000 => Answer::Trap,
        0x8000_0000 => Answer::End,
        other => panic!("answer {other:#x}"),
    }
}
