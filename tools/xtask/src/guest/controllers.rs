//! All of a guest's controllers.

use super::arguments::GuestArgs;
use super::command::Devices;
use super::controller::{Controller, Driver};
use crate::failure::Result;

/// The guest's controllers in command line order.
pub(crate) struct Controllers {
    pub(super) vfio: Vec<Controller>,
    pub(super) kernel: Vec<Controller>,
}

impl Controllers {
    pub(super) fn parse(arguments: &GuestArgs) -> Result<Self> {
        let parse = |texts: &[String], driver| {
            let numbered = texts.iter().enumerate();
            numbered
                .map(|(index, text)| Controller::parse(text, driver, index))
                .collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            vfio: parse(&arguments.nvme, Driver::Vfio)?,
            kernel: parse(&arguments.kernel_nvme, Driver::Kernel)?,
        })
    }

    pub(super) fn count(&self) -> Devices {
        Devices { vfio: self.vfio.len(), kernel: self.kernel.len() }
    }
}
