//! Attaches a namespace to a controller of the subsystem, or detaches it (NVMe Base 2.0 section 5.22).
//!
//! ```text
//! cargo xtask vm --example attach_namespace --qemu-arg '-device nvme-subsys,id=sub' \
//!     --nvme 'subsys=sub,serial=x;nsid=1;nsid=2' --nvme 'subsys=sub,serial=x;none' -- attach_namespace {1} detach 2 0
//! ```
//!
//! TARGET is the controller that receives the command, CNTLID the one to attach the namespace to, which may
//! be another: that one reports a Namespace Attribute Changed event to its driver.

use std::process::ExitCode;

use adit_driver::spec::command::AttachmentSelect;
use adit_driver::spec::{Nsid, Sqe};
use adit_driver::{Controller, ControllerOptions, Error, Result, Target};

/// A Controller List (figure 134): a count and that many identifiers.
const LIST_BYTES: usize = 4096;
const USAGE: &str = "usage: attach_namespace TARGET attach|detach NSID CNTLID";

struct Request {
    target: Target,
    select: AttachmentSelect,
    nsid: Nsid,
    cntlid: u16,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match parse(&words).and_then(|request| run(&request)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attach_namespace: {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

fn parse(words: &[String]) -> Result<Request> {
    let wrong = |what: &str| Error::invalid(what, USAGE);
    let [target, verb, nsid, cntlid] = words else { return Err(wrong("the command line")) };
    let select = match verb.as_str() {
        "attach" => AttachmentSelect::Attach,
        "detach" => AttachmentSelect::Detach,
        _ => return Err(wrong(verb)),
    };
    Ok(Request {
        target: target.parse()?,
        select,
        nsid: Nsid(nsid.parse().map_err(|_| wrong(nsid))?),
        cntlid: cntlid.parse().map_err(|_| wrong(cntlid))?,
    })
}

fn run(request: &Request) -> Result<()> {
    let controller = Controller::open(&request.target, &ControllerOptions::default())?;
    let mut list = controller.allocate(LIST_BYTES)?;
    list[..2].copy_from_slice(&1u16.to_le_bytes());
    list[2..4].copy_from_slice(&request.cntlid.to_le_bytes());
    let sqe = Sqe::namespace_attachment(request.nsid, request.select);
    // SAFETY: the command transfers one list of 4096 bytes, which the buffer holds, and takes
    // nothing away that the driver relies on.
    #[allow(unsafe_code)]
    let done = unsafe { controller.admin("Namespace Attachment", sqe, Some(list)) };
    done.map(|_| println!("done: {:?} namespace {}", request.select, request.nsid.0))
}
