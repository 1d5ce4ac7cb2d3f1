//! Streams that are captured into CUDA graphs, and events recorded there.
#![allow(unsafe_code)]

use std::ptr;

use adit_gpu::cudarc::driver::sys::{self, CUgraph, CUresult, CUstreamCaptureMode};
use adit_gpu::{Check, Options, Place, Priority, Slice, Stream};

use crate::life::read;
use crate::rig::{LONG, Rig, alone, options};

const SOFT: &str = "soft:mem=8M,dbbuf=off";

fn begin(stream: &Stream) {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is live.
    let result = unsafe { sys::cuStreamBeginCapture_v2(stream.raw().cast(), mode) };
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

/// Ends a capture; returns the graph's nodes.
fn end(stream: &Stream) -> Result<usize, CUresult> {
    let (mut graph, mut nodes): (CUgraph, usize) = (ptr::null_mut(), 0);
    // SAFETY: the stream is live; a graph is destroyed once.
    unsafe {
        sys::cuStreamEndCapture(stream.raw().cast(), &mut graph).result().map_err(|why| why.0)?;
        sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes).result().map_err(|why| why.0)?;
        sys::cuGraphDestroy(graph).result().map_err(|why| why.0)?;
    }
    Ok(nodes)
}

#[test]
fn a_wait_is_not_captured_into_a_graph() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &options());
    let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
    let iocbs = rig.uring.get_iocb([read(0, 0)], None).expect("a block");
    rig.uring.issue_io(&iocbs, 0).expect("issued");

    begin(&compute);
    let error = rig.uring.wait_cqe(&iocbs, &compute).expect_err("its replay would not wait");
    assert!(error.is_usage(), "{error:?}");
    assert!(error.to_string().contains("call wait_cqe in the stream that launches"), "{error}");
    let slices = [Slice { region: 0, offset: 0, bytes: 512 }];
    let check = Check { slices, crc32c: 0 };
    let error = rig.uring.verify([check], &compute).expect_err("its replay would write anywhere");
    assert!(error.is_usage(), "{error:?}");
    assert!(error.to_string().contains("call verify in the stream that launches"), "{error}");
    assert_eq!(end(&compute), Ok(0), "the capture goes on, without the wait and the check");

    rig.uring.wait_cqe(&iocbs, &compute).expect("nothing is captured");
    compute.synchronize(LONG).expect("the blocks are over");
    assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
}

#[test]
fn an_event_of_a_captured_stream_begins_no_blocks() {
    let _alone = alone("");
    for engine in [adit_gpu::EngineChoice::Rings, adit_gpu::EngineChoice::Staged] {
        let rig = Rig::new(&[SOFT], Place::Host, &Options { engine, ..options() });
        let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        begin(&compute);
        let captured = compute.record().expect("it becomes a part of the graph");
        let refused = rig.uring.get_iocb([read(0, 0)], Some(&captured));
        let error = refused.expect_err("the event never happens");
        assert!(error.is_usage(), "{error:?}");
        assert!(error.to_string().contains("is a part of a CUDA graph"), "{error}");
        // CUDA spoils a capture whose events are looked at.
        assert_eq!(end(&compute), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));

        let free = compute.record().expect("nothing is captured");
        let iocbs = rig.uring.get_iocb([read(0, 0)], Some(&free)).expect("a block");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
    }
}

#[test]
fn what_cannot_be_done_while_a_stream_is_captured_says_so() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &options());
    let compute = rig.uring.compute_stream(Priority::Normal).expect("a stream");
    begin(&compute);
    let error = compute.is_idle().expect_err("its work is not being done").to_string();
    assert!(error.contains("do this before the capture, or after it"), "{error}");
    assert!(end(&compute).is_err(), "CUDA spoils the capture");
}
