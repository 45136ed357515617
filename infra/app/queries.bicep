// Functions of the workspace, which the workbook and the alerts build on: infra/queries/functions, docs/azure-portal.md.

@description('Name of the Log Analytics workspace.')
param workspaceName string

var functions = [
  {
    name: 'TidemarkLog'
    query: loadTextContent('../queries/functions/TidemarkLog.kql')
  }
  {
    name: 'TidemarkDecisions'
    query: loadTextContent('../queries/functions/TidemarkDecisions.kql')
  }
  {
    name: 'TidemarkEffects'
    query: loadTextContent('../queries/functions/TidemarkEffects.kql')
  }
  {
    name: 'TidemarkReports'
    query: loadTextContent('../queries/functions/TidemarkReports.kql')
  }
  {
    name: 'TidemarkConsumers'
    query: loadTextContent('../queries/functions/TidemarkConsumers.kql')
  }
]

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' existing = {
  name: workspaceName
}

// One after the other: they change the workspace. With the etag a later deployment replaces what is there.
@batchSize(1)
resource saved 'Microsoft.OperationalInsights/workspaces/savedSearches@2020-08-01' = [for each in functions: {
  parent: workspace
  name: each.name
  etag: '*'
  properties: {
    category: 'Tidemark'
    displayName: each.name
    functionAlias: each.name
    query: each.query
    version: 2
  }
}]

