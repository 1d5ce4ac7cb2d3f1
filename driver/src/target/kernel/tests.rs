//! Kernel targets parse, print and are refused as documented.

use super::*;
use crate::Target;
use proptest::prelude::*;

fn parsed(text: &str) -> KernelTarget {
    match text.parse::<Target>().expect("a target") {
        Target::Kernel(kernel) => kernel,
        other => panic!("{other:?}"),
    }
}

fn refusal(text: &str) -> String {
    text.parse::<Target>().expect_err("must be refused").to_string()
}

pub(crate) fn target() -> impl Strategy<Value = KernelTarget> {
    let path = proptest::sample::select(PATHS.to_vec());
    let maybe = || proptest::option::of(any::<bool>());
    let switches = (any::<bool>(), maybe(), maybe());
    let file = "[^,]{1,30}";
    (path, file, switches, 1u64..1 << 20, 9u32..17).prop_map(|(path, file, on, lbas, shift)| {
        let usual = KernelTarget::new(path, if path == KernelPath::Null { "" } else { &file });
        let has = |name| path.options().contains(&name);
        KernelTarget {
            direct: if has("direct") { on.0 } else { usual.direct },
            fixed: on.1.filter(|_| has("fixed")),
            polled: on.2.filter(|_| has("polled")),
            bytes: if has("size") { lbas << shift } else { usual.bytes },
            lba_bytes: if has("lba") { 1 << shift } else { usual.lba_bytes },
            ..usual
        }
    })
}

#[test]
fn each_path_parses_with_its_options() {
    let uring = parsed("uring:/dev/nvme0n1,polled=off,direct=off,fixed=off");
    let usual = KernelTarget::new(KernelPath::Uring, "/dev/nvme0n1");
    let all = KernelTarget { direct: false, fixed: Some(false), polled: Some(false), ..usual };
    assert_eq!(uring, all);
    let passthrough = parsed("uring-cmd:/dev/ng0n1,polled=on");
    assert_eq!((passthrough.polled, passthrough.fixed), (Some(true), None));
    assert!(!parsed("psync:x,direct=off").direct);
    assert!(!parsed("mmap:x").direct);
    let null = parsed("null:size=1G,lba=4096");
    assert_eq!((null.bytes, null.lba_bytes), (1 << 30, 4096));
    assert_eq!(parsed("null:").bytes, 1 << 40);
}

#[test]
fn only_what_is_not_usual_is_printed() {
    let printed = |text: &str| parsed(text).to_string();
    assert_eq!(printed("uring:/x,direct=on"), "uring:/x");
    assert_eq!(printed("uring:/x,fixed=on"), "uring:/x,fixed=on");
    assert_eq!(printed("uring:/x,polled=on,direct=off"), "uring:/x,direct=off,polled=on");
    assert_eq!(printed("null:"), "null:");
    assert_eq!(printed("null:lba=4096,size=1G"), "null:size=1073741824,lba=4096");
    assert_eq!(parsed("uring:/x,direct=off").device(), "uring:/x");
}

#[test]
fn what_a_path_does_not_have_is_refused_by_name() {
    assert!(refusal("uring:/x,dirct=on").contains("did you mean 'direct='?"));
    assert!(refusal("psync:/x,ns=1").contains("there are 'direct='"));
    assert!(refusal("mmap:/x,direct=on").contains("it has none"));
    assert!(refusal("uring:").contains("names no file"));
    assert!(refusal("uring:/x,y").contains("may not contain a comma"));
    assert!(refusal("uring:/x,fixed=1").contains("'fixed=on' or 'fixed=off'"));
    assert!(refusal("uring:/x,fixed=on,fixed=on").contains("given twice"));
    assert!(refusal("null:lba=500").contains("power of two"));
    assert!(refusal("null:size=0").contains("a size is"));
    assert!(refusal("null:size=1000,lba=512").contains("not a multiple"));
    assert!(refusal("null:/x").contains("NAME=VALUE"));
}
