// The workbook: capacity, metrics and thresholds, actions and refusals, late messages, consumers. Its queries are files in
// infra/queries/workbook, which the tests run on recorded lines; their columns have the names of docs/log-fields.md.

@description('Name of the Log Analytics workspace, which has the functions of queries.bicep.')
param workspaceName string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

var workspaces = 'microsoft.operationalinsights/workspaces'

// Choices of the drop-down lists: all of them, or one.
var choices = [
  {
    name: 'Target'
    query: loadTextContent('../queries/workbook/targets.kql')
  }
  {
    name: 'Consumer'
    query: loadTextContent('../queries/workbook/consumers.kql')
  }
]

var charts = [
  {
    title: 'Capacity: current, desired, bounds'
    query: loadTextContent('../queries/workbook/capacity.kql')
    visualization: 'timechart'
  }
  {
    title: 'Metrics and the thresholds they are compared with'
    query: loadTextContent('../queries/workbook/metrics.kql')
    visualization: 'timechart'
  }
  {
    title: 'All metrics, but for durations'
    query: loadTextContent('../queries/workbook/values.kql')
    visualization: 'timechart'
  }
  {
    title: 'Ages of the oldest messages, and other durations, in minutes'
    query: loadTextContent('../queries/workbook/durations.kql')
    visualization: 'timechart'
  }
  {
    title: 'Decisions by reason'
    query: loadTextContent('../queries/workbook/reasons.kql')
    visualization: 'unstackedbar'
  }
  {
    title: 'Late messages of today and the share allowed, in per cent'
    query: loadTextContent('../queries/workbook/late.kql')
    visualization: 'timechart'
  }
  {
    title: 'Actions with their reasons'
    query: loadTextContent('../queries/workbook/actions.kql')
    visualization: 'table'
  }
  {
    title: 'Refused, failed, limited, given up'
    query: loadTextContent('../queries/workbook/refusals.kql')
    visualization: 'table'
  }
  {
    title: 'What could not be read'
    query: loadTextContent('../queries/workbook/failures.kql')
    visualization: 'table'
  }
  {
    title: 'Messages in the poison queues'
    query: loadTextContent('../queries/workbook/poison.kql')
    visualization: 'table'
  }
  {
    title: 'Consumer: events behind'
    query: loadTextContent('../queries/workbook/lag.kql')
    visualization: 'timechart'
  }
  {
    title: 'Consumer: request units per second, attempts answered 429, records written'
    query: loadTextContent('../queries/workbook/request-units.kql')
    visualization: 'timechart'
  }
  {
    title: 'Consumer: dead letters, and events lost to retention'
    query: loadTextContent('../queries/workbook/dead-letters.kql')
    visualization: 'unstackedbar'
  }
]

var lists = [for choice in choices: {
  id: guid(choice.name)
  version: 'KqlParameterItem/1.0'
  name: choice.name
  type: 2
  isRequired: true
  query: choice.query
  value: '*'
  queryType: 0
  resourceType: workspaces
  timeContextFromParameter: 'TimeRange'
}]

var times = [
  {
    id: guid('TimeRange')
    version: 'KqlParameterItem/1.0'
    name: 'TimeRange'
    label: 'Time'
    type: 4
    isRequired: true
    value: {
      durationMs: 14400000
    }
    typeSettings: {
      selectableValues: [
        {
          durationMs: 3600000
        }
        {
          durationMs: 14400000
        }
        {
          durationMs: 86400000
        }
        {
          durationMs: 604800000
        }
      ]
      allowCustom: true
    }
  }
]

var header = [
  {
    type: 1
    name: 'what this is'
    content: {
      json: 'Made from the fields of the log lines, which come one to three minutes late. `tidemark log` has the same decisions at once.'
    }
  }
  {
    type: 9
    name: 'parameters'
    content: {
      version: 'KqlParameterItem/1.0'
      parameters: concat(times, lists)
      style: 'pills'
      queryType: 0
      resourceType: workspaces
    }
  }
]

var shown = [for chart in charts: {
  type: 3
  name: chart.title
  content: {
    version: 'KqlItem/1.0'
    title: chart.title
    query: chart.query
    visualization: chart.visualization
    size: 0
    timeContextFromParameter: 'TimeRange'
    queryType: 0
    resourceType: workspaces
  }
}]

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' existing = {
  name: workspaceName
}

resource workbook 'Microsoft.Insights/workbooks@2022-04-01' = {
  name: guid(workspace.id, 'tidemark')
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'Tidemark'
    category: 'workbook'
    sourceId: workspace.id
    serializedData: string({
      version: 'Notebook/1.0'
      items: concat(header, shown)
    })
  }
}

@description('Full resource id of the workbook.')
output id string = workbook.id
