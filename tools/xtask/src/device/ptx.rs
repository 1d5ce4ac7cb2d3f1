//! Checks required and forbidden instructions in compiled device code (PTX ISA 8.x, memory consistency model).
//!
//! Reads the text line by line in NVRTC's layout: one instruction per line, labels and braces on lines of their
//! own.

/// The doorbell's store, and the fence required before each.
const DOORBELL: &str = "st.mmio.relaxed.sys.global.u32";
const FENCE: &str = "fence.acq_rel.sys";
/// Kernels that drive rings, and the instructions each needs: the doorbell, the phase, release and acquire, and a whole
/// context in one load.
const RING_KERNELS: [&str; 2] = ["adit_issue", "adit_persist"];
const NEEDED: [&str; 6] = [
    DOORBELL,
    FENCE,
    "ld.acquire.sys.global.u32",
    "st.release.gpu.global.u32",
    "ld.acquire.gpu.global.u32",
    "ld.global.v4.u32",
];
/// Memory other than registers, and unordered accesses.
const FORBIDDEN: [(&str, &str); 4] = [
    ("st.local", "a spill to local memory"),
    ("ld.local", "a spill to local memory"),
    ("st.volatile", "a store without order or scope"),
    ("ld.volatile", "a load without order or scope"),
];

/// Returns all errors in a text, with line numbers from 1.
pub(super) fn offences(text: &str) -> Vec<String> {
    let mut offences = unfenced(text);
    for (line, instruction) in instructions(text) {
        let wrong = FORBIDDEN.iter().find(|(name, _)| instruction.starts_with(name));
        offences.extend(wrong.map(|(name, what)| format!("line {line}: {name}: {what}")));
    }
    for kernel in RING_KERNELS {
        let Some(body) = body(text, kernel) else {
            offences.push(format!("there is no kernel {kernel}"));
            continue;
        };
        let missing = NEEDED.iter().filter(|&&needed| !has(body, needed));
        offences.extend(missing.map(|needed| format!("{kernel} has no {needed}")));
    }
    offences
}

/// Returns what is missing in a kernel that waits and then copies by TMA: its instructions in their order.
pub(super) fn offences_of_waiting(text: &str) -> Vec<String> {
    const WAITING: [&str; 3] =
        ["ld.acquire.gpu.global.u32", "bar.sync", "fence.proxy.async.global"];
    let mut rest = instructions(text);
    let missing = WAITING
        .iter()
        .filter(|needed| !rest.any(|(_, instruction)| instruction.starts_with(**needed)));
    missing.map(|needed| format!("it has no {needed} where it belongs")).collect()
}

/// Returns texts with one error each, all of which the check must detect.
pub(super) fn canary(text: &str) -> Vec<String> {
    let mut changes: Vec<(String, String)> = NEEDED
        .iter()
        .map(|&needed| (needed.to_owned(), text.replace(needed, &weaker(needed))))
        .collect();
    changes.push((
        "st.local".to_owned(),
        text.replacen("st.release.gpu.global.u32", "st.local.u32", 1),
    ));
    changes.push(("one fence".to_owned(), text.replacen(FENCE, "membar.gl", 1)));
    let unnoticed = changes.into_iter().filter(|(_, changed)| offences(changed).is_empty());
    unnoticed.map(|(what, _)| format!("the check does not notice a text without {what}")).collect()
}

/// Returns the compiler's reports of kernels that do not keep everything in registers.
pub(super) fn spills(log: &str) -> Vec<String> {
    let reports: Vec<&str> =
        log.lines().filter(|line| line.contains("bytes spill stores")).collect();
    if reports.is_empty() {
        return vec!["the compiler does not report spills".to_owned()];
    }
    let clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
    let spilled = reports.iter().filter(|line| !line.ends_with(clean));
    spilled.map(|line| format!("a kernel does not fit its registers: {}", line.trim())).collect()
}

/// Returns an instruction of the same kind without ordering.
fn weaker(instruction: &str) -> String {
    let kind = instruction.split('.').next().unwrap_or_default();
    format!("{kind}.weak.global.u32")
}

/// Returns the lines with instructions, labels and braces, without predicates, numbered from 1.
fn instructions(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with("//") && !line.starts_with('.'));
    lines.map(|(number, line)| {
        let unpredicated =
            line.strip_prefix('@').and_then(|rest| rest.split_once(char::is_whitespace));
        (number, unpredicated.map_or(line, |(_, instruction)| instruction.trim_start()))
    })
}

/// Returns the doorbells without a fence directly before them: in the same block, without memory accesses in
/// between.
fn unfenced(text: &str) -> Vec<String> {
    let mut is_fenced = false;
    let mut offences = Vec::new();
    for (line, instruction) in instructions(text) {
        if instruction.starts_with("st.mmio") && !is_fenced {
            offences.push(format!("line {line}: no {FENCE} directly before {DOORBELL}"));
        }
        if instruction.starts_with(FENCE) {
            is_fenced = true;
        } else if ends_fence(instruction) {
            is_fenced = false;
        }
    }
    offences
}

/// Returns whether an earlier fence no longer counts as directly before what follows this instruction.
fn ends_fence(instruction: &str) -> bool {
    const REACHES_MEMORY: [&str; 7] = ["st.", "ld.", "atom.", "red.", "fence.", "membar.", "cp."];
    const BRANCHES: [&str; 4] = ["bra", "call", "ret", "bar"];
    let starts_with = |words: &[&str]| words.iter().any(|word| instruction.starts_with(word));
    let is_parameter = instruction.starts_with("ld.param");
    instruction.ends_with(':')
        || starts_with(&BRANCHES)
        || starts_with(&REACHES_MEMORY) && !is_parameter
}

fn has(text: &str, needed: &str) -> bool {
    instructions(text).any(|(_, instruction)| instruction.starts_with(needed))
}

/// Returns the text of a kernel, from its name to its closing brace.
fn body<'a>(text: &'a str, kernel: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!(".entry {kernel}("))?;
    Some(after.split("\n}").next().unwrap_or(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "\
ld.param.u64 %rd1, [adit_issue_param_0];
$L__BB0_1:
// begin inline asm
ld.acquire.sys.global.u32 %r1, [%rd1];
ld.acquire.gpu.global.u32 %r2, [%rd2];
ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd5];
@%p1 bra $L__BB0_1;
st.release.gpu.global.u32 [%rd3], %r3;
fence.acq_rel.sys;
add.s32 %r4, %r3, 1;
st.mmio.relaxed.sys.global.u32 [%rd4], %r4;
ret;
";

    fn module(kernel: &str) -> String {
        RING_KERNELS.map(|name| format!(".visible .entry {name}(\n)\n{{\n{kernel}\n}}\n")).concat()
    }

    #[test]
    fn a_text_with_all_it_needs_is_in_order() {
        let text = module(KERNEL);
        assert_eq!(offences(&text), Vec::<String>::new());
        assert_eq!(canary(&text), Vec::<String>::new());
    }

    #[test]
    fn a_doorbell_needs_a_fence_in_its_own_block_with_no_access_in_between() {
        let between = |line: &str| module(&KERNEL.replace("add.s32 %r4, %r3, 1;", line));
        assert_eq!(offences(&between("ld.param.u64 %rd5, [x];")), Vec::<String>::new());
        for line in [
            "ld.global.u32 %r9, [%rd9];",
            "$L__BB0_2:",
            "@%p2 st.global.u32 [%rd9], %r9;",
            "bra.uni $L__BB0_1;",
        ] {
            assert_eq!(offences(&between(line)).len(), RING_KERNELS.len(), "{line}");
        }
    }

    #[test]
    fn a_kernel_that_is_not_there_and_a_spill_are_noticed() {
        assert_eq!(offences("").len(), RING_KERNELS.len());
        let spilled = module(&KERNEL.replace("ret;", "ld.local.u32 %r9, [%rd9];\nret;"));
        assert_eq!(offences(&spilled).len(), RING_KERNELS.len());
    }

    #[test]
    fn a_kernel_that_waits_has_its_fence_behind_the_barrier() {
        let [load, barrier, fence] =
            ["ld.acquire.gpu.global.u32 %r1, [%rd1];", "bar.sync 0;", "fence.proxy.async.global;"];
        let text = |lines: [&str; 3]| lines.join("\n");
        assert_eq!(offences_of_waiting(&text([load, barrier, fence])), Vec::<String>::new());
        assert_eq!(offences_of_waiting(&text([load, fence, barrier])).len(), 1);
        assert_eq!(offences_of_waiting(&text([load, barrier, "ret;"])).len(), 1);
        assert!(!offences_of_waiting(&text([barrier, fence, load])).is_empty());
    }

    #[test]
    fn a_report_of_spills_is_read() {
        let clean = "ptxas  .  0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
        assert!(spills(clean).is_empty());
        assert_eq!(
            spills(&format!(
                "{clean}{}",
                clean.replace("0 bytes spill stores", "8 bytes spill stores")
            ))
            .len(),
            1
        );
        assert_eq!(spills("").len(), 1);
    }
}
