//! SMART / Health Information (NVMe Base 2.0 section 5.16.1.3).

use adit_driver::Controller;
use adit_driver::spec::log::SmartHealth;
use adit_driver::spec::{Lid, Nsid};
use serde::Serialize;

use super::page::{Row, read_log, row};
use crate::failure::Result;
use crate::human;

/// The log's fields with their units.
#[derive(Debug, Serialize)]
pub(super) struct SmartReport {
    /// The active warnings in words.
    critical_warnings: Vec<&'static str>,
    critical_warning: u8,
    /// `null` if the controller does not report it.
    composite_temperature_celsius: Option<i32>,
    available_spare_percent: u8,
    available_spare_threshold_percent: u8,
    percentage_used: u8,
    endurance_group_warning: u8,
    data_read_bytes: u128,
    data_written_bytes: u128,
    host_read_commands: u128,
    host_write_commands: u128,
    controller_busy_minutes: u128,
    power_cycles: u128,
    power_on_hours: u128,
    unsafe_shutdowns: u128,
    media_errors: u128,
    error_log_entries: u128,
    warning_temperature_minutes: u32,
    critical_temperature_minutes: u32,
    /// The implemented sensors.
    temperature_sensors: Vec<Sensor>,
    thermal_transitions: [u32; 2],
    thermal_total_seconds: [u32; 2],
}

#[derive(Debug, Serialize)]
struct Sensor {
    number: usize,
    celsius: i32,
}

impl SmartReport {
    /// Reads the log.
    ///
    /// # Errors
    /// As [`Controller::log_page`].
    pub(super) fn read(controller: &Controller, nsid: Nsid) -> Result<SmartReport> {
        Ok(SmartReport::of(&*read_log(controller, Lid::SMART_HEALTH, nsid)?))
    }

    pub(super) fn of(log: &SmartHealth) -> SmartReport {
        SmartReport {
            critical_warnings: log.critical_warning().names().collect(),
            critical_warning: log.critical_warning,
            composite_temperature_celsius: log.temperature_c(),
            available_spare_percent: log.available_spare_percent,
            available_spare_threshold_percent: log.available_spare_threshold_percent,
            percentage_used: log.percentage_used,
            endurance_group_warning: log.endurance_group_warning,
            data_read_bytes: log.data_read_bytes(),
            data_written_bytes: log.data_written_bytes(),
            host_read_commands: log.host_reads.get(),
            host_write_commands: log.host_writes.get(),
            controller_busy_minutes: log.controller_busy_minutes.get(),
            power_cycles: log.power_cycles.get(),
            power_on_hours: log.power_on_hours.get(),
            unsafe_shutdowns: log.unsafe_shutdowns.get(),
            media_errors: log.media_errors.get(),
            error_log_entries: log.error_log_entries.get(),
            warning_temperature_minutes: log.warning_temperature_minutes.get(),
            critical_temperature_minutes: log.critical_temperature_minutes.get(),
            temperature_sensors: sensors(log),
            thermal_transitions: log.thermal_transitions.map(|count| count.get()),
            thermal_total_seconds: log.thermal_total_s.map(|seconds| seconds.get()),
        }
    }

    /// Returns rows with the specification's names.
    pub(super) fn rows(&self) -> Vec<Row> {
        let celsius = |celsius: i32| format!("{celsius} C");
        let temperature = self.composite_temperature_celsius.map_or("not reported".into(), celsius);
        let mut rows = vec![
            row("Critical Warning", self.warnings()),
            row("Composite Temperature", temperature),
            row("Available Spare", format!("{} %", self.available_spare_percent)),
            row(
                "Available Spare Threshold",
                format!("{} %", self.available_spare_threshold_percent),
            ),
            row("Percentage Used", format!("{} %", self.percentage_used)),
            row(
                "Endurance Group Critical Warning",
                format!("{:#04x}", self.endurance_group_warning),
            ),
            row("Data Units Read", bytes(self.data_read_bytes)),
            row("Data Units Written", bytes(self.data_written_bytes)),
            row("Host Read Commands", self.host_read_commands),
            row("Host Write Commands", self.host_write_commands),
            row("Controller Busy Time", format!("{} min", self.controller_busy_minutes)),
            row("Power Cycles", self.power_cycles),
            row("Power On Hours", format!("{} h", self.power_on_hours)),
            row("Unsafe Shutdowns", self.unsafe_shutdowns),
            row("Media and Data Integrity Errors", self.media_errors),
            row("Number of Error Information Log Entries", self.error_log_entries),
            row(
                "Warning Composite Temperature Time",
                format!("{} min", self.warning_temperature_minutes),
            ),
            row(
                "Critical Composite Temperature Time",
                format!("{} min", self.critical_temperature_minutes),
            ),
        ];
        let sensors = self.temperature_sensors.iter();
        rows.extend(sensors.map(|sensor| {
            row(format!("Temperature Sensor {}", sensor.number), celsius(sensor.celsius))
        }));
        for (number, (count, seconds)) in
            (1..).zip(self.thermal_transitions.iter().zip(self.thermal_total_seconds))
        {
            let name = format!("Thermal Management Temperature {number}");
            rows.push(row(name, format!("{count} transitions, {seconds} s")));
        }
        rows
    }

    fn warnings(&self) -> String {
        match self.critical_warning {
            0 => "none".to_owned(),
            bits => format!("{} ({bits:#04x})", self.critical_warnings.join("; ")),
        }
    }
}

fn sensors(log: &SmartHealth) -> Vec<Sensor> {
    log.sensors_c().map(|(number, celsius)| Sensor { number, celsius }).collect()
}

fn bytes(count: u128) -> String {
    format!("{} ({count} bytes)", human::bytes_si(count as f64))
}
